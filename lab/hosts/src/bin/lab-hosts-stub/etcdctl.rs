//! etcdctl, and the etcd of this host as its manifest describes it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Error, MANIFESTS, Outcome, answer, point};

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let endpoint = connect(arguments)?;
    if let Some(at) = arguments.iter().position(|word| *word == "save") {
        point("etcdctl.start")?;
        let path = arguments.get(at + 1).ok_or("snapshot save expects one argument")?;
        save(path)?;
        return answer(&format!("Snapshot saved at {path}"));
    }
    answer(&format!("{endpoint} is healthy: successfully committed proposal: took = 2ms"))
}

/// Connects as the real program does: etcd listens where its manifest has it, and accepts only certificates of
/// its own authority.
fn connect<'a>(arguments: &[&'a str]) -> Result<&'a str, Error> {
    let given = |name: &str| {
        let mut words = arguments.iter();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let endpoint = given("--endpoints").unwrap_or("127.0.0.1:2379");
    let urls = flag("listen-client-urls")?;
    if !urls.split(',').any(|url| url == endpoint) {
        return Err(
            format!("{endpoint} is unhealthy: failed to connect: connection refused").into()
        );
    }
    let authority = PathBuf::from(flag("trusted-ca-file")?);
    let own = |end: &str| authority.with_file_name(format!("healthcheck-client.{end}"));
    for (name, accepted) in [
        ("--cacert", vec![authority.clone()]),
        ("--cert", vec![own("crt"), flag("cert-file")?.into()]),
        ("--key", vec![own("key"), flag("key-file")?.into()]),
    ] {
        let path = Path::new(given(name).ok_or_else(|| format!("{endpoint} needs {name}"))?);
        fs::read(path).map_err(|error| format!("open {}: {error}", path.display()))?;
        if !accepted.iter().any(|accepted| accepted == path) {
            let why = format!("{} is of another authority", path.display());
            return Err(format!("{endpoint}: authentication handshake failed: {why}").into());
        }
    }
    Ok(endpoint)
}

/// The database of this host's etcd.
pub(crate) fn database() -> Result<PathBuf, Error> {
    Ok(Path::new(&flag("data-dir")?).join("member/snap/db"))
}

/// The value of a flag in etcd's manifest.
fn flag(name: &str) -> Result<String, Error> {
    let manifest = fs::read_to_string(Path::new(MANIFESTS).join("etcd.yaml"))?;
    let start = format!("- --{name}=");
    let value = manifest.lines().find_map(|line| line.trim().strip_prefix(&start));
    Ok(value.ok_or_else(|| format!("etcd's manifest has no --{name}"))?.to_owned())
}

/// Like the real program: the data with the marker of its store, then its checksum.
fn save(path: &str) -> Result<(), Error> {
    let mut data = fs::read(database()?)?;
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
