//! The kubelet that a plan has fetched and not installed yet.
//!
//! It is unpacked, so that it can check the configuration of this host while nothing is disturbed. That
//! is possible for tarballs and Debian packages; with other packages, the check waits for the
//! installation.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use refit_kinds::{refit::PackageArgs, version::KubernetesVersion};

use super::{
    Program, Site, kubelet_probe,
    packages::{self, Packages},
    snapshot,
    work::WorkError,
};

/// Its name in the snapshot of the plan.
const NAME: &str = "fetched-kubelet";
/// Directory of its unpacked package, next to it.
const UNPACKED: &str = "fetched-kubelet.all";

/// Unpacks the kubelet of a version, and logs whether it accepts the configuration: `kubeadm upgrade` may
/// still change that. Best effort.
pub(super) async fn stage(
    site: &Site,
    plan: &str,
    version: &KubernetesVersion,
    from: &PackageArgs,
) {
    if let Err(error) = unpack(site, plan, version, from).await {
        site.log_and_go_on(&format!(
            "the fetched kubelet was not unpacked, and cannot check the configuration: {error}"
        ));
    } else if let Err(error) = check(site, plan).await {
        site.log_and_go_on(&format!(
            "warning: {error}; the plan fails after kubeadm upgrade if this remains so"
        ));
    }
}

/// Checks that the fetched kubelet would start with the configuration of this host, if it was unpacked.
pub(super) async fn check(site: &Site, plan: &str) -> Result<(), WorkError> {
    let program = place(site, plan);
    if program.exists() { kubelet_probe::check_fetched(site, &program).await } else { Ok(()) }
}

/// Removes it: the installed one checks the configuration from now on.
pub(super) fn forget(site: &Site, plan: &str) {
    match fs::remove_file(place(site, plan)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, "the fetched kubelet was not removed");
        }
        _ => {}
    }
}

/// Removes those of all plans, with what an interrupted attempt has unpacked.
pub(super) fn forget_all(site: &Site) {
    let plans = fs::read_dir(site.state().join("snapshots")).into_iter().flatten().flatten();
    for plan in plans {
        let unpacked = plan.path().join(UNPACKED);
        for removed in [fs::remove_file(plan.path().join(NAME)), fs::remove_dir_all(unpacked)] {
            if let Err(error) = removed
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, "a fetched kubelet was not removed");
            }
        }
    }
}

fn place(site: &Site, plan: &str) -> PathBuf {
    site.snapshot(plan).join(NAME)
}

async fn unpack(
    site: &Site,
    plan: &str,
    version: &KubernetesVersion,
    from: &PackageArgs,
) -> Result<(), WorkError> {
    let target = place(site, plan);
    if target.exists() {
        return Ok(());
    }
    let file = |error: io::Error| WorkError::file(&target, &error);
    let own = snapshot::make_directory(site, plan)?;
    match Packages::of(site, from.driver)? {
        Packages::Tarball(tarball) => {
            symlink(tarball.unpacked(version).join("kubelet"), &target).map_err(file)
        }
        Packages::Apt(_) => {
            let places = [packages::fetched_directory(site, plan), site.path(&from.path)];
            let package = places.iter().find_map(|directory| package(directory, version));
            let Some(package) = package else {
                // As it is if this version is installed already.
                site.log(
                    "no package of the kubelet was fetched, so it does not check the configuration",
                );
                return Ok(());
            };
            let all = own.join(UNPACKED);
            fs::create_dir_all(&all).map_err(file)?;
            let [package, into] = [&package, &all].map(|path| path.display().to_string());
            let extract = ["--extract".to_owned(), package, into];
            let extracted = site.call(Program::DpkgDeb, extract).output().await;
            let moved = extracted
                .map_err(WorkError::from)
                .and_then(|_| fs::rename(all.join("usr/bin/kubelet"), &target).map_err(file));
            moved.and(fs::remove_dir_all(&all).map_err(file))
        }
        Packages::Dnf(_) => Ok(()),
    }
}

/// The package file of a kubelet: apt names files `name_version_arch.deb`.
fn package(directory: &Path, version: &KubernetesVersion) -> Option<PathBuf> {
    let files = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|kind| kind == "deb")).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut parts = name.split('_');
        parts.next() == Some("kubelet")
            && parts.next().is_some_and(|text| version.is_of_package(text))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use refit_kinds::refit::{FailureKind, PackageDriver};

    use super::*;
    use crate::host::{kubeadm::KUBELET_CONFIG, site::Tool};

    /// A host whose apt has fetched a kubelet that refuses the gate `OldGate`.
    fn site() -> (tempfile::TempDir, Site) {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        let fetched = packages::fetched_directory(&site, "p");
        for path in [&fetched, &site.path("/var/lib/kubelet")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::create_dir_all(site.state()).unwrap();
        let kubelet = "for word in \"$@\"; do case $word in --config=*) config=${word#*=};; --v=*) exit 3;; esac; done\n\
            grep -q OldGate $config && { echo 'panic: unrecognized feature gate: OldGate'; exit 2; }\n\
            echo 'failed to validate kubelet configuration, error: invalid configuration: port (--port) \
            65536 must be between 1 and 65535, inclusive, path: x'; exit 1";
        fs::write(fetched.join("kubelet_1.34.9-1.1_amd64.deb"), "old").unwrap();
        fs::write(fetched.join("kubelet_1.35.0-1.1_amd64.deb"), kubelet).unwrap();
        // The stub of dpkg-deb takes the package for the program in it.
        let dpkg = directory.path().join("dpkg-deb");
        let script = "#!/bin/sh\nmkdir -p $3/usr/bin\n\
                      { echo '#!/bin/sh'; cat $2; } > $3/usr/bin/kubelet; chmod 755 $3/usr/bin/kubelet\n";
        fs::write(&dpkg, script).unwrap();
        fs::set_permissions(&dpkg, fs::Permissions::from_mode(0o755)).unwrap();
        let tool = |path: String| Tool { path, ..Tool::default() };
        let site = site
            .with_tool(Program::DpkgDeb, tool(dpkg.display().to_string()))
            .with_tool(Program::Systemctl, tool("/no/such/program".to_owned()));
        fs::write(site.path("/var/lib/kubelet/kubeadm-flags.env"), "KUBELET_KUBEADM_ARGS=--v=2\n")
            .unwrap();
        (directory, site)
    }

    #[tokio::test]
    async fn the_fetched_kubelet_stops_the_plan_after_kubeadm_and_not_before() {
        let (_directory, site) = site();
        let version = "v1.35.0".parse().unwrap();
        let from = PackageArgs { driver: PackageDriver::Apt, ..PackageArgs::default() };
        check(&site, "p").await.unwrap();
        fs::write(site.path(KUBELET_CONFIG), "featureGates: {OldGate: true}\n").unwrap();
        stage(&site, "p", &version, &from).await;
        let log = fs::read_to_string(site.state().join("host.log")).unwrap();
        assert!(
            log.contains("warning: the fetched kubelet does not accept a feature gate"),
            "{log}"
        );
        let error = check(&site, "p").await.unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
        assert!(
            error.message.contains("config.yaml (unrecognized feature gate: OldGate)"),
            "{error}"
        );
        // kubeadm has written another configuration.
        fs::write(site.path(KUBELET_CONFIG), "featureGates: {}\n").unwrap();
        check(&site, "p").await.unwrap();
        forget(&site, "p");
        assert_eq!(fs::read_dir(site.snapshot("p")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_kubelet_that_was_not_fetched_checks_nothing() {
        let (_directory, site) = site();
        let from = PackageArgs { driver: PackageDriver::Apt, ..PackageArgs::default() };
        stage(&site, "p", &"v1.36.0".parse().unwrap(), &from).await;
        assert!(!place(&site, "p").exists());
        check(&site, "p").await.unwrap();
    }
}
