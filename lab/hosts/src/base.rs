//! The Debian root that all hosts share, built once.
//!
//! It is cached outside of the checkout, by release and package list. It uses the mirror of the
//! machine's own apt.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::print_line;

/// Packages of every host.
const PACKAGES: [&str; 10] = [
    "apt-utils",
    "ca-certificates",
    "curl",
    "dbus",
    "gzip",
    "iproute2",
    "procps",
    "systemd-sysv",
    "udev",
    "util-linux",
];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Additional packages for hosts of a real Kubernetes cluster.
pub const KUBERNETES: [&str; 11] = [
    "busybox-static",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "etcd-client",
    "etcd-server",
    "ethtool",
    "iptables",
    "kmod",
    "runc",
    "socat",
];

/// A Debian that hosts run.
#[derive(Clone, Copy, Debug)]
pub struct Debian<'a> {
    /// Names of the releases to try, the preferred first.
    pub releases: &'a [&'a str],
    /// Packages in addition to those of every host.
    pub packages: &'a [&'a str],
}

impl Debian<'_> {
    /// The newest release of which the mirror has packages. A library shows processes another time.
    pub const NEWEST: Self = Self { releases: &["trixie", "bookworm"], packages: &["libfaketime"] };
    /// The oldest supported release: glibc 2.31, systemd 247.
    pub const OLDEST: Self = Self { releases: &["bullseye"], packages: &[] };
}

/// Returns the directory of the root. Builds it if it is missing, which takes about a minute.
pub fn ensure(debian: Debian<'_>) -> anyhow::Result<PathBuf> {
    let mut packages = [PACKAGES.as_slice(), debian.packages].concat();
    packages.sort_unstable();
    let packages = packages.join(",");
    let digest = Sha256::digest(packages.as_bytes());
    let key = digest[..6].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let cache = cache()?.join("hosts");
    fs::create_dir_all(&cache).with_context(|| format!("failed to create {}", cache.display()))?;
    let directory = |release: &str| cache.join(format!("{release}-{key}"));
    let built = debian.releases.iter().map(|release| directory(release));
    if let Some(found) = built.into_iter().find(|path| path.is_dir()) {
        return Ok(found);
    }
    let mirror = mirror()?;
    let mut problems = Vec::new();
    for release in debian.releases {
        match build(release, &packages, &mirror, &directory(release)) {
            Ok(()) => return Ok(directory(release)),
            Err(error) => problems.push(format!("{release}: {error:#}")),
        }
    }
    bail!("failed to create a Debian root; {}", problems.join("; "))
}

/// Returns `REFIT_CACHE`, by default `~/.cache/refit`.
fn cache() -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os("REFIT_CACHE") {
        return Ok(PathBuf::from(path));
    }
    let home = env::var_os("HOME").context("neither REFIT_CACHE nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache/refit"))
}

/// Returns the mirror of Debian's own packages that apt uses on this machine.
fn mirror() -> anyhow::Result<String> {
    let directory = Path::new("/etc/apt/sources.list.d");
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        files.push(entry.path());
    }
    files.sort();
    let texts = files.iter().filter_map(|path| fs::read_to_string(path).ok());
    let text: Vec<String> = texts.collect();
    find_mirror(&text.join("\n")).context(
        "no apt source on this machine ends in /debian; the tests need one as their mirror",
    )
}

/// Finds the first address that ends in `/debian`, in either format of apt's sources.
fn find_mirror(text: &str) -> Option<String> {
    let lines = text.lines().map(str::trim);
    let used = lines.filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    used.flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches('/'))
        .find(|word| word.contains("://") && word.ends_with("/debian"))
        .map(str::to_owned)
}

fn build(release: &str, packages: &str, mirror: &str, directory: &Path) -> anyhow::Result<()> {
    let partial = directory.with_extension(format!("partial-{}", std::process::id()));
    print_line(&format!("creating a root of Debian {release} (once, takes about a minute)"));
    let status = Command::new("mmdebstrap")
        .args(["--quiet", "--variant=apt", "--format=directory"])
        .arg(format!("--include={packages}"))
        .args([release])
        .arg(&partial)
        .arg(format!("deb [signed-by={KEYRING}] {mirror} {release} main"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("failed to run mmdebstrap; install it with `apt-get install mmdebstrap`")?;
    if !status.success() {
        // The directory is always Refit's own: it never holds anything else.
        let _ = fs::remove_dir_all(&partial);
        bail!("mmdebstrap failed with {status}");
    }
    match fs::rename(&partial, directory) {
        // Another process was faster.
        Err(_) if directory.is_dir() => Ok(fs::remove_dir_all(&partial)?),
        outcome => outcome.with_context(|| format!("failed to write {}", directory.display())),
    }
}
