//! The part of an Updater that the agent on the host makes: its arguments, from a machine's objects.

use refit_kinds::{
    json::text,
    refit::{HostPart, OsImageArgs, OsImageFrom, UpdaterHost},
};
use serde_json::Value;

use super::{
    claim::{Claim, names},
    claim_path::ClaimPath,
};

/// Why the agent on a host cannot make the part of an Updater.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Updater {updater} needs {path} in {kind}, and it is {what}")]
pub struct BadHostPart {
    /// Name of the Updater.
    pub updater: String,
    /// Path of the argument.
    pub path: String,
    /// Kind of the object.
    pub kind: String,
    /// What is wrong with the argument.
    pub what: String,
}

/// The agent's arguments in the desired objects of a machine.
pub(super) fn host_part(
    updater: &str,
    host: &UpdaterHost,
    claims: &[Claim],
    desired: &[&Value],
) -> Result<HostPart, BadHostPart> {
    let OsImageFrom { url_from, checksum_from, name_from, brings_kubelet } = &host.os_image;
    let object = desired.iter().find(|object| claims.iter().any(|claim| claim.is_of(object)));
    let kind = object.map(|object| text(object, "/kind")).unwrap_or_default();
    let bad = |path: &str, what: &str| BadHostPart {
        updater: updater.to_owned(),
        path: path.to_owned(),
        kind: kind.to_owned(),
        what: what.to_owned(),
    };
    let argument = |path: &str| match object.map(|object| text(object, path)) {
        None | Some("") => Err(bad(path, "missing")),
        Some(value) => Ok(value.to_owned()),
    };
    let url = argument(url_from)?;
    let sha384 = argument(checksum_from)?;
    let is_sha384 = sha384.len() == 96 && sha384.chars().all(|c| c.is_ascii_hexdigit());
    if !is_sha384 {
        return Err(bad(checksum_from, "no sha384 of 96 hex digits"));
    }
    let name = match name_from {
        Some(path) => argument(path)?,
        None => file_name(&url).ok_or_else(|| bad(url_from, "a URL without a file name"))?,
    };
    let brings_kubelet = *brings_kubelet;
    let os_image = OsImageArgs { name, url, sha384, brings_kubelet, health_checks: Vec::new() };
    Ok(HostPart::OsImage(os_image))
}

/// The file name in a URL, without its extension.
fn file_name(url: &str) -> Option<String> {
    let (_, file) = url.split(['?', '#']).next()?.rsplit_once('/')?;
    let name = file.rsplit_once('.').map_or(file, |(name, _)| name);
    (!name.is_empty()).then(|| name.to_owned())
}

/// The paths of the agent's arguments.
pub(super) fn argument_paths(host: &UpdaterHost) -> impl Iterator<Item = &String> {
    let OsImageFrom { url_from, checksum_from, name_from, brings_kubelet: _ } = &host.os_image;
    [url_from, checksum_from].into_iter().chain(name_from)
}

/// A claimed path that no step of the agent uses, if there is one.
pub(super) fn unused_claim<'a>(host: &UpdaterHost, claims: &'a [Claim]) -> Option<&'a ClaimPath> {
    let mut paths = claims.iter().flat_map(|claim| &claim.paths);
    paths.find(|path| !argument_paths(host).any(|argument| names(path, argument)))
}

/// An argument of the agent that is not claimed, if there is one.
pub(super) fn unclaimed_argument<'a>(
    host: &'a UpdaterHost,
    claims: &[Claim],
) -> Option<&'a String> {
    let claimed = |argument: &&String| {
        claims.iter().flat_map(|claim| &claim.paths).any(|path| names(path, argument))
    };
    argument_paths(host).find(|argument| !claimed(argument))
}
