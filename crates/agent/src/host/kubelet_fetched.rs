//! The kubelet that a plan has fetched and not installed yet.
//!
//! It is unpacked, so that it can check the configuration of this host while nothing is disturbed. Where that is not
//! possible, for example because the host has no `rpm2archive`, the check waits for the installation.

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

/// Path of the program in its package.
const PROGRAM: &str = "usr/bin/kubelet";
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
    let packages = Packages::of(site, from.driver)?;
    let extension = match &packages {
        Packages::Tarball(tarball) => {
            let unpacked = tarball.unpacked(version).join("kubelet");
            return symlink(unpacked, &target).map_err(file);
        }
        Packages::Apt(_) => "deb",
        Packages::Dnf(_) => "rpm",
    };
    let places = [packages::fetched_directory(site, plan), site.path(&from.path)];
    let package = places.iter().find_map(|directory| package(directory, extension, version));
    let Some(package) = package else {
        // As it is if this version is installed already.
        site.log("no package of the kubelet was fetched, so it does not check the configuration");
        return Ok(());
    };
    // The packages in a directory were verified with their bundle, or belong to the administrator.
    if let (Packages::Dnf(dnf), true) = (&packages, from.path.is_empty()) {
        dnf.check_before_run(&package).await?;
    }
    let all = own.join(UNPACKED);
    // Of an attempt that was interrupted.
    let _ = fs::remove_dir_all(&all);
    fs::create_dir_all(&all).map_err(file)?;
    let extracted = match &packages {
        Packages::Dnf(_) => extract_rpm(site, &package, &all).await,
        Packages::Apt(_) | Packages::Tarball(_) => extract_deb(site, &package, &all).await,
    };
    let moved = extracted.and_then(|()| fs::rename(all.join(PROGRAM), &target).map_err(file));
    moved.and(fs::remove_dir_all(&all).map_err(file))
}

async fn extract_deb(site: &Site, package: &Path, into: &Path) -> Result<(), WorkError> {
    let [package, into] = [package, into].map(|path| path.display().to_string());
    let call = site.call(Program::DpkgDeb, ["--extract", &package, &into]);
    call.output().await.map(drop).map_err(WorkError::from)
}

/// rpm itself extracts nothing (`docs/facts/hosts.md#dnf`). `rpm2archive` writes a tarball next to the package.
async fn extract_rpm(site: &Site, package: &Path, into: &Path) -> Result<(), WorkError> {
    let link = into.join("kubelet.rpm");
    symlink(package, &link).map_err(|error| WorkError::file(&link, &error))?;
    let [link, into] = [&*link, into].map(|path| path.display().to_string());
    site.ask(Program::Rpm2archive, [&link]).await?;
    let archive = format!("{link}.tgz");
    let arguments = ["--extract", "--no-same-owner", "--file", &archive, "--directory", &into];
    site.ask(Program::Tar, arguments).await.map(drop).map_err(WorkError::from)
}

/// The package file of a kubelet: apt names files `name_version_arch.deb`, dnf `name-version-release.arch.rpm`.
fn package(directory: &Path, extension: &str, version: &KubernetesVersion) -> Option<PathBuf> {
    let files = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let mut files = files.filter(|path| path.extension().is_some_and(|kind| kind == extension));
    files.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let rest = name.strip_prefix("kubelet").and_then(|rest| rest.strip_prefix(['_', '-']));
        let package = rest.and_then(|rest| rest.split('_').next());
        package.is_some_and(|package| version.is_of_package(package))
    })
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{FailureKind, PackageDriver};

    use super::*;
    use crate::host::{kubeadm::KUBELET_CONFIG, scripted::ScriptedHost};

    /// Refuses the gate `OldGate`.
    const KUBELET: &str = "for word in \"$@\"; do case $word in --config=*) config=${word#*=};; --v=*) exit 3;; esac; done\n\
        grep -q OldGate $config && { echo 'panic: unrecognized feature gate: OldGate'; exit 2; }\n\
        echo 'failed to validate kubelet configuration, error: invalid configuration: port (--port) \
        65536 must be between 1 and 65535, inclusive, path: x'; exit 1";

    /// A host that has fetched [`KUBELET`]. The stubs of its programs take a package for the program in it.
    fn host() -> ScriptedHost {
        let mut host = ScriptedHost::with_directories(&["/var/lib/kubelet"]);
        let fetched = packages::fetched_directory(&host.site, "p");
        fs::create_dir_all(&fetched).unwrap();
        for (old, new) in [
            ("kubelet_1.34.9-1.1_amd64.deb", "kubelet_1.35.0-1.1_amd64.deb"),
            ("kubelet-1.34.9-150500.1.1.x86_64.rpm", "kubelet-1.35.0-150500.1.1.x86_64.rpm"),
        ] {
            fs::write(fetched.join(old), "old").unwrap();
            fs::write(fetched.join(new), KUBELET).unwrap();
        }
        let program = "{ echo '#!/bin/sh'; cat $package; } > $tree/usr/bin/kubelet; chmod 755 $tree/usr/bin/kubelet";
        let dpkg = format!("package=$2; tree=$3; mkdir -p $tree/usr/bin; {program}");
        let archive = "tar --create --gzip --file $package.tgz --directory $tree ./usr";
        let rpm = format!("package=$1; tree=$1.tree; mkdir -p $tree/usr/bin; {program}; {archive}");
        host.script(Program::DpkgDeb, &dpkg);
        host.script(Program::Rpm2archive, &rpm);
        host.script(Program::Dnf, "exit 0");
        host.without(Program::Dnf5);
        host.without(Program::Systemctl);
        host.write("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=--v=2\n");
        host
    }

    #[tokio::test]
    async fn the_fetched_kubelet_stops_the_plan_after_kubeadm_and_not_before() {
        for driver in [PackageDriver::Apt, PackageDriver::Dnf] {
            let host = host();
            let site = &host.site;
            let version = "v1.35.0".parse().unwrap();
            let from = PackageArgs { driver, ..PackageArgs::default() };
            check(site, "p").await.unwrap();
            host.write(KUBELET_CONFIG, "featureGates: {OldGate: true}\n");
            stage(site, "p", &version, &from).await;
            let log = host.log();
            let warning = "warning: the fetched kubelet does not accept a feature gate";
            assert!(log.contains(warning), "{driver:?} {log}");
            let error = check(site, "p").await.unwrap_err();
            assert_eq!(error.kind, FailureKind::NeedsPerson);
            let wanted = "config.yaml (unrecognized feature gate: OldGate)";
            assert!(error.message.contains(wanted), "{driver:?} {error}");
            // kubeadm has written another configuration.
            host.write(KUBELET_CONFIG, "featureGates: {}\n");
            check(site, "p").await.unwrap();
            forget(site, "p");
            assert_eq!(fs::read_dir(site.snapshot("p")).unwrap().count(), 0);
        }
    }

    #[tokio::test]
    async fn a_kubelet_that_was_not_fetched_or_cannot_be_unpacked_checks_nothing() {
        let mut host = host();
        host.without(Program::Rpm2archive);
        for (driver, version, said) in [
            (PackageDriver::Apt, "v1.36.0", "no package of the kubelet was fetched"),
            (PackageDriver::Dnf, "v1.36.0", "no package of the kubelet was fetched"),
            (PackageDriver::Dnf, "v1.35.0", "the fetched kubelet was not unpacked"),
        ] {
            let from = PackageArgs { driver, ..PackageArgs::default() };
            stage(&host.site, "p", &version.parse().unwrap(), &from).await;
            assert!(host.log().contains(said), "{driver:?} {version} {}", host.log());
            assert_eq!(fs::read_dir(host.site.snapshot("p")).unwrap().count(), 0);
            check(&host.site, "p").await.unwrap();
        }
    }
}
