//! The kubelet: it needs its configuration and the container runtime, and reports its node and the static pods.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use crate::{
    COMPONENTS, Error, KUBELET_CONFIG, MANIFESTS, Outcome, RUNTIME_SOCKET, answer, now, point,
    version,
};

const CREDENTIALS: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";

pub(crate) fn run(arguments: &[&str]) -> Outcome {
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
    runtime()?;
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

/// Connects to the container runtime. Without it, the kubelet ends.
fn runtime() -> Result<(), Error> {
    let mut outcome = UnixStream::connect(RUNTIME_SOCKET);
    for _ in 0..5 {
        if outcome.is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(200));
        outcome = UnixStream::connect(RUNTIME_SOCKET);
    }
    let failed = |error| {
        let why = format!("endpoint \"unix://{RUNTIME_SOCKET}\": {error}");
        format!("failed to run Kubelet: validate service connection: {why}")
    };
    Ok(outcome.map(drop).map_err(failed)?)
}

/// A host as its kubelet sees it.
struct Node {
    name: String,
    /// File of the cluster's authority.
    authority: String,
    server: String,
    version: String,
    boot_id: String,
    os_image: String,
}

impl Node {
    fn read() -> Result<Self, Error> {
        let config = fs::read_to_string("/etc/kubernetes/kubelet.conf")?;
        let server = config
            .lines()
            .find_map(|line| line.trim().strip_prefix("server: "))
            .ok_or("kubelet.conf contains no server")?;
        let release = fs::read_to_string("/etc/os-release")?;
        let os_image = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let settings = fs::read_to_string(KUBELET_CONFIG)?;
        let authority = settings
            .lines()
            .find_map(|line| line.trim().strip_prefix("clientCAFile: "))
            .ok_or("the configuration contains no clientCAFile")?;
        Ok(Self {
            authority: authority.to_owned(),
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
            .args(["--cacert", &self.authority, "--cert", CREDENTIALS])
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
