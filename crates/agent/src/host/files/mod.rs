//! Files of the host, as declared in a KubeadmConfig.
//!
//! Files are written atomically and durably (`atomic`), after the previous file was saved (`keep`).
//! Content never appears in a log, in an error or on a command line.

pub(crate) mod atomic;
pub(crate) mod keep;
mod place;
pub(crate) mod revoke;
pub(crate) mod secret;
mod users;
mod walk;

use std::{
    fs,
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::read::GzDecoder;
use refit_kinds::refit::{FileArgs, FileEncoding, PlannedFile};
use sha2::{Digest as _, Sha256};

use self::{atomic::Access, secret::SecretSource};
pub(crate) use self::{users::home, walk::UnsafeFile};
use super::{
    Evidence, Program, Site,
    kubeadm::{MANIFESTS, certificates::keeping_annotation},
    work::WorkError,
};
use crate::policy::OwnPaths;

/// Maximum size of a file after decompression.
const MOST_BYTES: u64 = 16 << 20;
const DEFAULT_MODE: u32 = 0o644;
/// Directories that are empty for the agent's service (`ProtectHome`, `PrivateTmp`), but not for its
/// units. What they hold is proven by the mark of the unit alone.
const UNSEEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

/// Whether the agent's service sees what is at a path: neither the path nor a link on the way leads to
/// where it sees nothing.
fn is_seen(site: &Site, path: &Path) -> bool {
    let mut path = path.to_owned();
    for _ in 0..walk::MOST_LINKS {
        if UNSEEN.iter().any(|unseen| path.starts_with(unseen)) {
            return false;
        }
        let Some(next) = after_first_link(site, &path) else {
            return true;
        };
        path = next;
    }
    true
}

/// The path with the target of its first link in place of the link; `None` without a link.
fn after_first_link(site: &Site, path: &Path) -> Option<PathBuf> {
    let parts: Vec<&Path> = path.ancestors().collect();
    let target = |part: &Path| fs::read_link(site.path(part)).ok();
    let (link, target) = parts.into_iter().rev().find_map(|part| Some((part, target(part)?)))?;
    let rest = path.strip_prefix(link).ok()?;
    let mut plain = PathBuf::new();
    for part in link.parent()?.join(target).join(rest).components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    Some(plain)
}

/// Writes the files and creates the users of a step.
pub(crate) async fn apply(
    site: &Site,
    plan: &str,
    step: &str,
    args: &FileArgs,
    own: &OwnPaths,
    secrets: &dyn SecretSource,
) -> Result<(), WorkError> {
    // Here and not only before the plan is started: the agent's service does not see the links in
    // home directories. Root follows only links of root, so none can be exchanged after this.
    if let Some(path) = own.written_by(args, site) {
        let message = format!("{path} belongs to the agent of this host, and no plan may write it");
        return Err(WorkError::needs_person(message));
    }
    // Users first: a file may belong to one of them.
    for user in &args.users {
        users::make(site, plan, step, user).await?;
    }
    for file in &args.files {
        write(site, plan, step, file, secrets).await?;
    }
    Ok(())
}

/// Whether the files and users of a step exist as planned, as far as the agent's service sees them.
/// Secrets are not fetched for this: their checksum is compared.
pub(crate) fn check(site: &Site, args: &FileArgs) -> Evidence {
    for user in &args.users {
        if users::find(site, &user.name).is_none() {
            let what = format!("user {} does not exist", user.name);
            return Evidence::Missing { what };
        }
    }
    for file in args.files.iter().filter(|file| is_seen(site, Path::new(&file.path))) {
        let found = atomic::read(&site.path(&file.path)).ok().flatten();
        let same =
            found.is_some_and(|(found, _)| match (&file.content_from, file.sha256.as_str()) {
                (Some(_), "") => true,
                (Some(_), sum) => file.append || sum.eq_ignore_ascii_case(&hex_sum(&found)),
                (None, _) => decode(file, file.content.as_bytes()).is_ok_and(|wanted| {
                    if file.append {
                        contains(&found, &wanted)
                    } else {
                        found == wanted
                            || (keeps_annotation(file)
                                && found == keeping_annotation(&found, wanted))
                    }
                }),
            });
        if !same {
            let what = format!("{} differs from the plan", file.path);
            return Evidence::Missing { what };
        }
    }
    Evidence::Done
}

async fn write(
    site: &Site,
    plan: &str,
    step: &str,
    file: &PlannedFile,
    secrets: &dyn SecretSource,
) -> Result<(), WorkError> {
    check_path(&file.path)?;
    let raw = match &file.content_from {
        None => file.content.clone().into_bytes(),
        Some(key) => secrets.fetch(key).await?.into_bytes(),
    };
    let content = decode(file, &raw)?;
    if file.content_from.is_some()
        && !file.sha256.is_empty()
        && !file.sha256.eq_ignore_ascii_case(&hex_sum(&content))
    {
        return Err(WorkError::retriable(format!(
            "the secret for {} has changed since the plan was made; the next plan will have its \
             new checksum",
            file.path
        )));
    }
    let access = access(site, file)?;
    let path = site.path(&file.path);
    let found = || atomic::read(&path).map(|found| found.map_or_else(Vec::new, |(text, _)| text));
    let content = if file.append {
        let found = found()?;
        // Appended once, even if the step runs again.
        if contains(&found, &content) { found } else { [found, content].concat() }
    } else if keeps_annotation(file) {
        keeping_annotation(&found()?, content)
    } else {
        content
    };
    if atomic::is(&path, &content, access) {
        return Ok(());
    }
    keep::keep(site, plan, step, &file.path)?;
    atomic::replace(&path, &content, access)?;
    restore_labels(site, &path).await;
    site.log(&format!("wrote {}", file.path));
    Ok(())
}

/// Sets the SELinux labels of a file or directory on a host that has them: a new file has the label
/// of its directory, with which sshd or systemd may not use it. Best effort, as without SELinux.
pub(crate) async fn restore_labels(site: &Site, path: &Path) {
    if !site.has(Program::Restorecon) {
        return;
    }
    let path = path.display().to_string();
    if let Err(error) = site.run(&site.call(Program::Restorecon, ["-R", &path])).await {
        site.log(&format!("cannot set the labels of {path}: {error}"));
    }
}

fn check_path(path: &str) -> Result<(), WorkError> {
    let good = path.starts_with('/')
        && !path.ends_with('/')
        && !path.contains('\0')
        && !path.split('/').any(|part| part == "..");
    if good {
        Ok(())
    } else {
        Err(WorkError::permanent(format!(
            "invalid path {path:?}, expected the absolute path of a file"
        )))
    }
}

fn access(site: &Site, file: &PlannedFile) -> Result<Access, WorkError> {
    let mode = match file.permissions.as_str() {
        "" => DEFAULT_MODE,
        text => {
            u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
                WorkError::permanent(format!(
                    "invalid permissions {text:?} of {}, expected an octal number",
                    file.path
                ))
            })?
        }
    };
    let (user, group) = match file.owner.as_str() {
        "" => ("root", "root"),
        owner => owner.split_once(':').unwrap_or((owner, "")),
    };
    let unknown = |kind: &str, name: &str| {
        WorkError::needs_person(format!(
            "cannot set the owner of {}: the {kind} {name:?} does not exist on the host; create \
             it, or change the owner in the plan",
            file.path
        ))
    };
    let known = users::find(site, user);
    let uid = user.parse().ok().or(known.map(|(uid, _)| uid));
    let uid = uid.ok_or_else(|| unknown("user", user))?;
    let gid = match group {
        "" => known.map(|(_, gid)| gid),
        group => {
            let found = group.parse().ok().or_else(|| users::group(site, group));
            Some(found.ok_or_else(|| unknown("group", group))?)
        }
    };
    Ok(Access { mode, uid: Some(uid), gid })
}

fn decode(file: &PlannedFile, raw: &[u8]) -> Result<Vec<u8>, WorkError> {
    // The error leaves out the content, which may be a secret.
    let wrong = |what: &str| {
        WorkError::permanent(format!("the content of {} is not valid {what}", file.path))
    };
    let from_base64 = |raw: &[u8]| {
        let text: Vec<u8> = raw.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
        STANDARD.decode(text).map_err(|_| wrong("base64"))
    };
    let unpacked = |raw: &[u8]| {
        let mut content = Vec::new();
        let read = GzDecoder::new(raw).take(MOST_BYTES + 1).read_to_end(&mut content);
        match read {
            Ok(size) if size as u64 <= MOST_BYTES => Ok(content),
            Ok(_) => {
                Err(WorkError::permanent(format!("{} unpacks to more than 16 MiB", file.path)))
            }
            Err(_) => Err(wrong("gzip")),
        }
    };
    match file.encoding {
        FileEncoding::Plain => Ok(raw.to_vec()),
        FileEncoding::Base64 => from_base64(raw),
        FileEncoding::Gzip => unpacked(raw),
        FileEncoding::GzipBase64 => unpacked(&from_base64(raw)?),
    }
}

/// Whether a file is the manifest of a static pod, which keeps the agent's own annotation. One from a Secret does not: the
/// plan has only its checksum, which [`check`] compares.
fn keeps_annotation(file: &PlannedFile) -> bool {
    Path::new(&file.path).parent() == Some(Path::new(MANIFESTS)) && file.content_from.is_none()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

fn hex_sum(content: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut hex = String::new();
    for byte in Sha256::digest(content) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
