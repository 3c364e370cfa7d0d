//! Stand-in for kubeadm, kubelet, kubectl, containerd and etcdctl in the tests' own packages.
//!
//! The last line of its own file defines which program it is, and in which version. At named points
//! it runs `/var/lib/stub/NAME.POINT` once, if a test created that file: the script makes the
//! program slow, sets its exit code, kills it or blocks it.

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::{Duration, SystemTime},
};

const MANIFESTS: &str = "/etc/kubernetes/manifests";
const COMPONENTS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
const CREDENTIALS: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";

type Outcome = Result<ExitCode, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let (name, _) = identity();
    let arguments: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let outcome = match name.as_str() {
        "kubeadm" => kubeadm(&arguments),
        "kubelet" => kubelet(&arguments),
        "containerd" => containerd(&arguments),
        "etcdctl" => etcdctl(&arguments),
        _ => answer(&format!("Client Version: {}", version())),
    };
    outcome.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "{name}: {error}");
        ExitCode::FAILURE
    })
}

fn answer(line: &str) -> Outcome {
    writeln!(io::stdout(), "{line}")?;
    Ok(ExitCode::SUCCESS)
}

fn version() -> String {
    identity().1
}

/// Reads the last line of this program's file, `NAME VERSION`. The path is not reliable: a program
/// that was replaced while it runs is started by its entry in `/proc`.
fn identity() -> (String, String) {
    let bytes = fs::read("/proc/self/exe").unwrap_or_default();
    let end = bytes.len().saturating_sub(64);
    let tail = String::from_utf8_lossy(bytes.get(end..).unwrap_or_default()).into_owned();
    let last = tail.trim_end().rsplit('\n').next().unwrap_or_default();
    let (name, version) = last.split_once(' ').unwrap_or_default();
    (name.to_owned(), version.to_owned())
}

/// Runs the script that a test left for this point, once; its exit code ends the program.
#[expect(clippy::exit, reason = "a scripted failure exits immediately")]
fn point(name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let ordered = PathBuf::from(format!("/var/lib/stub/{name}"));
    if !ordered.exists() {
        return Ok(());
    }
    let taken = ordered.with_extension("taken");
    fs::rename(&ordered, &taken)?;
    let status = Command::new("/bin/sh")
        .arg(&taken)
        .env("STUB_PID", std::process::id().to_string())
        .status()?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => std::process::exit(137),
    }
}

fn now() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed();
    since.map(|since| since.as_secs()).unwrap_or_default()
}

fn containerd(arguments: &[&str]) -> Outcome {
    if arguments.contains(&"--version") {
        return answer(&format!("containerd containerd.io {} 0", version()));
    }
    loop {
        thread::sleep(Duration::from_hours(1));
    }
}

fn etcdctl(arguments: &[&str]) -> Outcome {
    if let Some(at) = arguments.iter().position(|word| *word == "save") {
        point("etcdctl.start")?;
        let path = arguments.get(at + 1).ok_or("snapshot save expects one argument")?;
        save(path)?;
        return answer(&format!("Snapshot saved at {path}"));
    }
    answer("127.0.0.1:2379 is healthy: successfully committed proposal: took = 2ms")
}

/// Like the real program: the data with the marker of its store, then its checksum.
fn save(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let mut data = fs::read("/var/lib/etcd/member/snap/db")?;
    let mark = data.get_mut(16..20).ok_or("etcd has no data")?;
    mark.copy_from_slice(&0xED0C_DAED_u32.to_le_bytes());
    fs::write(path, &data)?;
    let sum = Command::new("/usr/bin/sha256sum").arg(path).output()?;
    let hex = String::from_utf8_lossy(&sum.stdout).into_owned();
    let byte = |at: usize| {
        let pair = hex.get(at..at + 2)?;
        u8::from_str_radix(pair, 16).ok()
    };
    let sum: Option<Vec<u8>> = (0..64).step_by(2).map(byte).collect();
    data.extend(sum.ok_or("sha256sum printed no valid checksum")?);
    Ok(fs::write(path, data)?)
}

fn kubeadm(arguments: &[&str]) -> Outcome {
    match arguments {
        ["version", rest @ ..] if rest.contains(&"short") || rest.contains(&"-oshort") => {
            answer(&version())
        }
        ["version", ..] => answer(&format!("kubeadm version: {}", version())),
        ["upgrade", "plan", ..] => answer("You can now apply the upgrade"),
        ["upgrade", "apply", rest @ ..] => {
            let target = rest.iter().find(|word| word.starts_with("v1."));
            let target = target.ok_or("missing one or more required arguments: version")?;
            if *target != version() {
                return Err(
                    format!("the target {target} is not this kubeadm's {}", version()).into()
                );
            }
            upgrade()
        }
        ["upgrade", "node", ..] => upgrade(),
        ["config" | "certs" | "init", ..] => answer("done"),
        _ => Err(format!("unknown command {arguments:?}").into()),
    }
}

/// What `kubeadm upgrade` does on disk, in the same order.
fn upgrade() -> Outcome {
    let version = version();
    writeln!(io::stdout(), "[preflight] Running pre-flight checks.")?;
    point("kubeadm.start")?;
    let control_plane = Path::new(MANIFESTS).join("kube-apiserver.yaml").exists();
    if control_plane {
        for component in COMPONENTS {
            if !Path::new(MANIFESTS).join(format!("{component}.yaml")).exists() {
                let why = format!("[ERROR StaticPodManifest]: {component} has no manifest");
                return Err(format!("[preflight] Some fatal errors occurred:\n\t{why}").into());
            }
        }
        static_pods(&version)?;
    }
    point("kubeadm.kubelet-config")?;
    let config = fs::read_to_string(KUBELET_CONFIG)?;
    let backup = format!("/etc/kubernetes/tmp/kubeadm-kubelet-config{}", now());
    fs::create_dir_all(&backup)?;
    fs::write(format!("{backup}/config.yaml"), &config)?;
    let kept = config.lines().filter(|line| !line.starts_with("# written by"));
    let kept: Vec<&str> = kept.collect();
    fs::write(KUBELET_CONFIG, format!("{}\n# written by kubeadm {version}\n", kept.join("\n")))?;
    point("kubeadm.end")?;
    let what = if control_plane { "control plane node" } else { "node" };
    answer(&format!("[upgrade] SUCCESS! A {what} of your cluster was upgraded to \"{version}\"."))
}

fn static_pods(version: &str) -> Result<(), Box<dyn std::error::Error>> {
    let tmp = Path::new("/etc/kubernetes/tmp");
    let backup = tmp.join(format!("kubeadm-backup-manifests-{}", now()));
    let next = tmp.join(format!("kubeadm-upgraded-manifests{}", now()));
    for directory in [&backup, &next] {
        fs::create_dir_all(directory)?;
    }
    let etcd = tmp.join(format!("kubeadm-backup-etcd-{}", now()));
    fs::create_dir_all(&etcd)?;
    fs::copy("/var/lib/etcd/member/snap/db", etcd.join("db"))?;
    for component in COMPONENTS {
        point(&format!("kubeadm.{component}"))?;
        let file = format!("{component}.yaml");
        let manifest = Path::new(MANIFESTS).join(&file);
        let old = fs::read_to_string(&manifest)?;
        let new = with_version(&old, component, version);
        if new == old {
            continue;
        }
        // Like the real program: nothing is synced, and for a moment there is no manifest at all.
        fs::write(next.join(&file), &new)?;
        fs::rename(&manifest, backup.join(&file))?;
        point(&format!("kubeadm.{component}.gap"))?;
        fs::rename(next.join(&file), &manifest)?;
        point(&format!("kubeadm.{component}.swapped"))?;
        writeln!(
            io::stdout(),
            "[upgrade/staticpods] Moved new manifest to {}",
            manifest.display()
        )?;
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn with_version(manifest: &str, component: &str, version: &str) -> String {
    if component == "etcd" {
        return manifest.to_owned();
    }
    let lines = manifest.lines().map(|line| match line.split_once("image: ") {
        Some((before, image)) => {
            let name = image.rsplit_once(':').map_or(image, |(name, _)| name);
            format!("{before}image: {name}:{version}")
        }
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn kubelet(arguments: &[&str]) -> Outcome {
    if arguments.contains(&"--version") {
        return answer(&format!("Kubernetes {}", version()));
    }
    if arguments.contains(&"--help") {
        return answer("--config --kubeconfig --node-ip");
    }
    // The real kubelet validates its flags and its configuration before it does anything.
    if arguments.contains(&"--port=65536") {
        let port =
            "invalid configuration: port (--port) 65536 must be between 1 and 65535, inclusive";
        return Err(
            format!("failed to validate kubelet configuration, error: {port}, path: &x").into()
        );
    }
    point("kubelet.start")?;
    if !Path::new(KUBELET_CONFIG).exists() {
        return Err(format!("failed to load kubelet config file {KUBELET_CONFIG}").into());
    }
    let node = Node::read()?;
    let mut reported = String::new();
    let mut beat = 0;
    loop {
        let pods = Node::pods();
        let state = format!("{}{pods:?}", node.status(0));
        if (state != reported || now() >= beat + 5) && node.report(&pods) {
            reported = state;
            beat = now();
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// A host as its kubelet sees it.
struct Node {
    name: String,
    server: String,
    version: String,
    boot_id: String,
    os_image: String,
}

impl Node {
    fn read() -> Result<Self, Box<dyn std::error::Error>> {
        let config = fs::read_to_string("/etc/kubernetes/kubelet.conf")?;
        let server = config
            .lines()
            .find_map(|line| line.trim().strip_prefix("server: "))
            .ok_or("kubelet.conf contains no server")?;
        let release = fs::read_to_string("/etc/os-release")?;
        let os_image = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        Ok(Self {
            name: fs::read_to_string("/etc/hostname")?.trim().to_owned(),
            server: server.to_owned(),
            version: version(),
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            os_image: os_image.unwrap_or_default().trim_matches('"').to_owned(),
        })
    }

    /// Returns the static pods: name and image.
    fn pods() -> Vec<(String, String)> {
        let read = |component: &&str| {
            let path = Path::new(MANIFESTS).join(format!("{component}.yaml"));
            let text = fs::read_to_string(path).ok()?;
            let image = text.lines().find_map(|line| line.trim().strip_prefix("image: "))?;
            Some(((*component).to_owned(), image.to_owned()))
        };
        COMPONENTS.iter().filter_map(read).collect()
    }

    fn status(&self, time: u64) -> String {
        let stamp = stamp(time);
        format!(
            r#"{{"status":{{"conditions":[{{"type":"Ready","status":"True","reason":"KubeletReady","message":"kubelet is posting ready status","lastHeartbeatTime":"{stamp}"}}],"nodeInfo":{{"architecture":"amd64","bootID":"{}","containerRuntimeVersion":"containerd://2.1.4","kernelVersion":"6","kubeProxyVersion":"","kubeletVersion":"{}","machineID":"{}","operatingSystem":"linux","osImage":"{}","systemUUID":"{}"}}}}}}"#,
            self.boot_id, self.version, self.name, self.os_image, self.name
        )
    }

    fn report(&self, pods: &[(String, String)]) -> bool {
        let path = format!("/api/v1/nodes/{}/status", self.name);
        let mut well = self.call("PATCH", &path, &self.status(now())).is_some();
        for (component, image) in pods {
            well &= self.mirror(component, image);
        }
        well
    }

    /// Creates and updates the mirror pod of a manifest.
    fn mirror(&self, component: &str, image: &str) -> bool {
        let name = format!("{component}-{}", self.name);
        let pods = "/api/v1/namespaces/kube-system/pods";
        let path = format!("{pods}/{name}");
        if let Some(there) = self.call("GET", &path, "") {
            if there.contains(&format!("\"image\":\"{image}\"")) {
                return true;
            }
            self.call("DELETE", &format!("{path}?gracePeriodSeconds=0"), "");
        }
        let mark = format!("{image}-{}", self.boot_id);
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"kube-system","labels":{{"component":"{component}","tier":"control-plane"}},"annotations":{{"kubernetes.io/config.mirror":"{mark}","kubernetes.io/config.hash":"{mark}","kubernetes.io/config.source":"file"}}}},"spec":{{"nodeName":"{}","hostNetwork":true,"containers":[{{"name":"{component}","image":"{image}"}}]}}}}"#,
            self.name
        );
        self.call("POST", pods, &body).is_some()
            && self.call("PATCH", &format!("{path}/status"), &running(component, image)).is_some()
    }

    /// Calls the API server; returns `None` if it refuses the call or is unreachable.
    fn call(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let kind = if method == "PATCH" {
            "Content-Type: application/strategic-merge-patch+json"
        } else {
            "Content-Type: application/json"
        };
        let mut curl = Command::new("/usr/bin/curl");
        curl.args(["--silent", "--show-error", "--fail-with-body", "--max-time", "5"])
            .args(["--cacert", "/etc/kubernetes/pki/ca.crt", "--cert", CREDENTIALS])
            .args(["--request", method, "--header", kind]);
        if !body.is_empty() {
            curl.args(["--data-binary", body]);
        }
        let output = curl.arg(format!("{}{path}", self.server)).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Some(text);
        }
        if method != "GET" {
            let _ = writeln!(io::stderr(), "{method} {path}: {text}");
        }
        None
    }
}

fn running(component: &str, image: &str) -> String {
    let stamp = stamp(now());
    format!(
        r#"{{"status":{{"phase":"Running","startTime":"{stamp}","conditions":[{{"type":"ContainersReady","status":"True","lastTransitionTime":"{stamp}"}},{{"type":"Ready","status":"True","lastTransitionTime":"{stamp}"}}],"containerStatuses":[{{"name":"{component}","image":"{image}","imageID":"","ready":true,"restartCount":0,"state":{{"running":{{"startedAt":"{stamp}"}}}}}}]}}}}"#
    )
}

/// Formats seconds since 1970 as a Kubernetes timestamp.
fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Converts days to a date, after Howard Hinnant's civil_from_days.
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}
