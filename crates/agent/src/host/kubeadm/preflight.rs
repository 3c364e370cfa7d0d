//! Checks that a host can be updated, before the host is disrupted.

use std::path::Path;

use crate::host::{
    Program, Site,
    kubeadm::{INSTANCE_CONFIG, KUBELET_CONFIG, manifest::LocalEtcd, room},
    kubelet, snapshot,
    work::WorkError,
};
use refit_kinds::version::KubernetesVersion;

/// The first kubelet that needs version 1 of the CRI: containerd 1.6.
const CRI_V1_MINOR: u64 = 26;
/// The first kubelet that does not start on cgroup v1 by default.
const FAIL_CGROUP_V1_MINOR: u64 = 35;

/// Checks the host for a kubelet of `version`; without a version, only the disk space and that a
/// snapshot can be taken.
pub(crate) async fn check(
    site: &Site,
    version: Option<&KubernetesVersion>,
) -> Result<(), WorkError> {
    let etcd = LocalEtcd::of(site)?;
    room::check(site, etcd.as_ref())?;
    snapshot::check(site, etcd.as_ref()).await?;
    if let Some(version) = version {
        runtime(site, version).await?;
        cgroup(site, version)?;
        endpoint(site)?;
    }
    site.log("preflight passed: the host can be updated");
    Ok(())
}

async fn runtime(site: &Site, version: &KubernetesVersion) -> Result<(), WorkError> {
    if version.minor() < CRI_V1_MINOR || !site.has(Program::Containerd) {
        return Ok(());
    }
    let answer = site.ask(Program::Containerd, ["--version"]).await?;
    match containerd_version(&answer) {
        Some(found) if found < (1, 6) => Err(WorkError::needs_person(format!(
            "containerd is {}.{}, but the kubelet of {version} needs CRI version 1, which \
             containerd has since 1.6; let the plan update the container runtime first",
            found.0, found.1
        ))),
        _ => Ok(()),
    }
}

/// Parses `containerd github.com/containerd/containerd v1.7.22 hash` or `containerd containerd.io
/// 1.7`.
fn containerd_version(answer: &str) -> Option<(u32, u32)> {
    answer.split_whitespace().find_map(|word| {
        let mut numbers = word.trim_start_matches('v').split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

fn cgroup(site: &Site, version: &KubernetesVersion) -> Result<(), WorkError> {
    let unified = site.path("/sys/fs/cgroup/cgroup.controllers").exists();
    let known = site.path("/sys/fs/cgroup").exists();
    if unified || !known || version.minor() < FAIL_CGROUP_V1_MINOR {
        return Ok(());
    }
    let allowed = site
        .read(KUBELET_CONFIG)
        .lines()
        .any(|line| line.split_whitespace().eq(["failCgroupV1:", "false"]));
    let by_flag = kubelet::flags(site).iter().any(|(flag, _)| flag == "--fail-cgroupv1=false");
    if allowed || by_flag {
        return Ok(());
    }
    Err(WorkError::needs_person(format!(
        "the host has cgroup v1, with which the kubelet of {version} does not start; boot it with \
         cgroup v2, or set failCgroupV1: false in the kubelet's configuration"
    )))
}

/// The container runtime endpoint must have a scheme: `unix://`
/// (`docs/facts/kubeadm.md#container-runtime`).
fn endpoint(site: &Site) -> Result<(), WorkError> {
    let flag = kubelet::flags(site).into_iter().find_map(|(flag, _)| {
        flag.strip_prefix("--container-runtime-endpoint=").map(str::to_owned)
    });
    let config = [KUBELET_CONFIG, INSTANCE_CONFIG].into_iter().filter_map(|file| {
        site.read(file).lines().find_map(|line| {
            let value = line.strip_prefix("containerRuntimeEndpoint:")?;
            Some(value.trim().trim_matches('"').to_owned())
        })
    });
    for found in flag.into_iter().chain(config) {
        if Path::new(&found).is_absolute() {
            return Err(WorkError::needs_person(format!(
                "the kubelet's container runtime endpoint {found} is not accepted by newer \
                 versions; set it to unix://{found}, in the kubelet's flags or configuration and \
                 in the Node's annotation kubeadm.alpha.kubernetes.io/cri-socket"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use refit_kinds::refit::FailureKind;

    use super::*;
    use crate::host::kubeadm::KUBELET_FLAGS;

    fn version(text: &str) -> KubernetesVersion {
        text.parse::<KubernetesVersion>().unwrap()
    }

    fn site() -> (tempfile::TempDir, Site) {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        for path in ["/var/lib/kubelet", "/sys/fs/cgroup"] {
            fs::create_dir_all(site.path(path)).unwrap();
        }
        fs::create_dir_all(site.state()).unwrap();
        (directory, site)
    }

    #[test]
    fn versions_of_containerd_are_read_as_each_build_writes_them() {
        for (answer, version) in [
            ("containerd github.com/containerd/containerd v1.7.22 7f7fdf", Some((1, 7))),
            ("containerd containerd.io 1.5.9 1407cab", Some((1, 5))),
            ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b", Some((2, 1))),
            ("nonsense", None),
        ] {
            assert_eq!(containerd_version(answer), version, "{answer}");
        }
    }

    #[test]
    fn cgroup_v1_stops_a_kubelet_that_would_not_start_on_it() {
        let (_directory, site) = site();
        cgroup(&site, &version("v1.34.2")).unwrap();
        let error = cgroup(&site, &version("v1.35.0")).unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        fs::write(site.path(KUBELET_CONFIG), "a: b\nfailCgroupV1: false\n").unwrap();
        cgroup(&site, &version("v1.35.0")).unwrap();
        fs::write(site.path(KUBELET_CONFIG), "a: b\n").unwrap();
        fs::write(site.path("/sys/fs/cgroup/cgroup.controllers"), "cpu").unwrap();
        cgroup(&site, &version("v1.35.0")).unwrap();
    }

    #[test]
    fn a_socket_without_its_scheme_is_for_a_person() {
        let (_directory, site) = site();
        endpoint(&site).unwrap();
        let flags = site.path(KUBELET_FLAGS);
        let line =
            |value| format!("KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint={value}\"\n");
        fs::write(&flags, line("/run/containerd/containerd.sock")).unwrap();
        let error = endpoint(&site).unwrap_err();
        assert!(error.message.contains("unix:///run/containerd"), "{error}");
        fs::write(&flags, line("unix:///run/containerd/containerd.sock")).unwrap();
        endpoint(&site).unwrap();
        let own = "containerRuntimeEndpoint: /run/containerd/containerd.sock\n";
        for file in [KUBELET_CONFIG, INSTANCE_CONFIG] {
            fs::write(site.path(file), own).unwrap();
            endpoint(&site).unwrap_err();
            fs::remove_file(site.path(file)).unwrap();
        }
    }
}
