//! kubeadm: what its upgrades do on disk.

use std::{
    env, fs,
    io::{self, Write as _},
    path::Path,
    thread,
    time::Duration,
};

use crate::{
    COMPONENTS, Error, KUBELET_CONFIG, MANIFESTS, Outcome, answer, etcdctl, now, point, version,
};

pub(crate) fn run(arguments: &[&str]) -> Outcome {
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

fn static_pods(version: &str) -> Result<(), Error> {
    let tmp = Path::new("/etc/kubernetes/tmp");
    let backup = tmp.join(format!("kubeadm-backup-manifests-{}", now()));
    let next = tmp.join(format!("kubeadm-upgraded-manifests{}", now()));
    for directory in [&backup, &next] {
        fs::create_dir_all(directory)?;
    }
    let etcd = tmp.join(format!("kubeadm-backup-etcd-{}", now()));
    fs::create_dir_all(&etcd)?;
    fs::copy(etcdctl::database()?, etcd.join("db"))?;
    for component in COMPONENTS {
        point(&format!("kubeadm.{component}"))?;
        let file = format!("{component}.yaml");
        let manifest = Path::new(MANIFESTS).join(&file);
        let old = fs::read_to_string(&manifest)?;
        let new = upgraded(&old, component, version);
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

/// The manifest that this version writes: with its image, and with the proxies of its own environment.
fn upgraded(manifest: &str, component: &str, version: &str) -> String {
    if component == "etcd" {
        return manifest.to_owned();
    }
    let mut text = String::new();
    let mut in_env = false;
    for line in manifest.lines() {
        // The parts of a list are further to the right, or begin with a dash.
        in_env &= line.starts_with("    - ") || line.starts_with("     ");
        in_env |= line == "    env:";
        match line.split_once("image: ") {
            _ if in_env => {}
            Some((before, image)) => {
                let name = image.rsplit_once(':').map_or(image, |(name, _)| name);
                text += &proxies();
                let tag = version.replace('+', "_");
                text.extend([before, "image: ", name, ":", &tag, "\n"]);
            }
            None => text.extend([line, "\n"]),
        }
    }
    text
}

/// The proxies of this program's environment, as the environment of a container.
fn proxies() -> String {
    let is_proxy = |(name, value): &(String, String)| {
        name.to_ascii_lowercase().ends_with("_proxy") && !value.is_empty()
    };
    let mut found: Vec<(String, String)> = env::vars().filter(is_proxy).collect();
    found.sort();
    let start = if found.is_empty() { String::new() } else { "    env:\n".to_owned() };
    found.into_iter().fold(start, |text, (name, value)| {
        format!("{text}    - name: {name}\n      value: {value}\n")
    })
}
