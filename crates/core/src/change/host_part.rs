//! The part of an Updater that the agent on the host makes: its arguments, from a machine's objects.

use std::collections::BTreeSet;

use refit_kinds::{
    json::{at, text},
    refit::{
        HostPart, MAX_OS_PACKAGES, OsImageArgs, OsImageFrom, OsPackage, OsPackageArgs,
        OsPackagesFrom, UpdaterHost,
    },
};
use serde_json::{Map, Value};

use super::{
    claim::{Claim, machine_kind, names},
    claim_path::ClaimPath,
    objects::{Level, Objects, PARTS},
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

/// The agent's arguments in the desired objects of a machine, or in what they are made from; `None` if the objects ask for
/// nothing.
pub(super) fn host_part(
    updater: &str,
    host: &UpdaterHost,
    claims: &[Claim],
    (level, desired): (Level, &Objects),
) -> Result<Option<HostPart>, BadHostPart> {
    let found = Found { updater, claims, level, desired };
    match host {
        UpdaterHost::OsImage(from) => Ok(Some(HostPart::OsImage(found.os_image(from)?))),
        UpdaterHost::OsPackages(from) => Ok(found.os_packages(from)?.map(HostPart::OsPackages)),
    }
}

/// Where arguments are found.
#[derive(Clone, Copy)]
struct Found<'a> {
    updater: &'a str,
    claims: &'a [Claim],
    level: Level,
    desired: &'a Objects,
}

impl<'a> Found<'a> {
    /// The object in which the argument of a path is claimed, or its template.
    fn object(&self, path: &str) -> Option<&'a Value> {
        let is_claimed = |claim: &&Claim| claim.paths.iter().any(|claimed| names(claimed, path));
        let claims: Vec<&Claim> = self.claims.iter().filter(is_claimed).collect();
        let mut objects = PARTS.iter().filter_map(|part| self.desired.part(*part));
        objects.find(|object| claims.iter().any(|claim| claim.is_of(object)))
    }

    fn value(&self, path: &str) -> Option<&'a Value> {
        at(self.level.machine_view(self.object(path)?)?, path)
    }

    fn bad(&self, path: &str, element: &str, what: impl Into<String>) -> BadHostPart {
        let kind = self.object(path).map(|object| machine_kind(text(object, "/kind")));
        BadHostPart {
            updater: self.updater.to_owned(),
            path: format!("{path}{element}"),
            kind: kind.unwrap_or_default().to_owned(),
            what: what.into(),
        }
    }

    fn text(&self, path: &str) -> Result<String, BadHostPart> {
        match self.value(path).and_then(Value::as_str) {
            None | Some("") => Err(self.bad(path, "", "missing")),
            Some(value) => Ok(value.to_owned()),
        }
    }

    fn os_image(&self, from: &OsImageFrom) -> Result<OsImageArgs, BadHostPart> {
        let OsImageFrom { url_from, checksum_from, name_from, brings_kubelet } = from;
        let url = self.text(url_from)?;
        let sha384 = self.text(checksum_from)?;
        let is_sha384 = sha384.len() == 96 && sha384.chars().all(|c| c.is_ascii_hexdigit());
        if !is_sha384 {
            return Err(self.bad(checksum_from, "", "no sha384 of 96 hex digits"));
        }
        let name = match name_from {
            Some(path) => self.text(path)?,
            None => file_name(&url)
                .ok_or_else(|| self.bad(url_from, "", "a URL without a file name"))?,
        };
        let brings_kubelet = *brings_kubelet;
        Ok(OsImageArgs { name, url, sha384, brings_kubelet, health_checks: Vec::new() })
    }

    fn os_packages(&self, from: &OsPackagesFrom) -> Result<Option<OsPackageArgs>, BadHostPart> {
        let OsPackagesFrom { install_from, security_from, exclude, reboot } = from;
        let install = install_from.as_deref().map(|path| self.packages(path)).transpose()?;
        let security = security_from.as_deref().map(|path| self.is_set(path)).transpose()?;
        let args = OsPackageArgs {
            install: install.unwrap_or_default(),
            security: security.unwrap_or_default(),
            exclude: exclude.clone(),
            reboot: *reboot,
        };
        if let Some(path) = install_from
            && let Some(kept) = args.install.iter().find(|package| args.keeps(&package.name))
        {
            let what = format!(
                "a list with {}, which keeps its version: remove it. Packages of Kubernetes and of container runtimes change by \
                 other means, and spec.host.osPackages.exclude of the Updater names further ones",
                kept.name
            );
            return Err(self.bad(path, "", what));
        }
        Ok((!args.install.is_empty() || args.security).then_some(args))
    }

    /// Whether there is a text or a number.
    fn is_set(&self, path: &str) -> Result<bool, BadHostPart> {
        match self.value(path) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::String(text)) => Ok(!text.is_empty()),
            Some(Value::Number(_)) => Ok(true),
            Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => Err(self.bad(
                path,
                "",
                "neither a text nor a number: use the date of a patch level, for example",
            )),
        }
    }

    fn packages(&self, path: &str) -> Result<Vec<OsPackage>, BadHostPart> {
        let packages: Vec<(String, Result<OsPackage, String>)> = match self.value(path) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) => {
                let all = list.iter().enumerate();
                all.map(|(index, element)| (format!("/{index}"), listed(element))).collect()
            }
            Some(Value::Object(all)) => {
                let all = all.iter();
                all.map(|(name, version)| (format!("/{name}"), package(name, version))).collect()
            }
            Some(Value::String(_) | Value::Number(_) | Value::Bool(_)) => {
                let what = "neither a list of packages with name and version nor an object with a version for each name";
                return Err(self.bad(path, "", what));
            }
        };
        let checked = |(element, package): (String, Result<OsPackage, String>)| {
            let fault = |package: OsPackage| package.fault().map_or(Ok(package), Err);
            let what = |why| self.bad(path, &element, format!("not a package to install: {why}"));
            package.and_then(fault).map_err(what)
        };
        let packages = packages.into_iter().map(checked).collect::<Result<Vec<_>, _>>()?;
        if packages.len() > MAX_OS_PACKAGES {
            let what = format!("{} packages: name at most {MAX_OS_PACKAGES}", packages.len());
            return Err(self.bad(path, "", what));
        }
        let mut names = BTreeSet::new();
        match packages.iter().find(|package| !names.insert(&package.name)) {
            Some(twice) => {
                Err(self.bad(path, "", format!("a list with {} twice: name it once", twice.name)))
            }
            None => Ok(packages),
        }
    }
}

/// A package in a list. What is not known there would be a change that is not made.
fn listed(element: &Value) -> Result<OsPackage, String> {
    const WANTED: &str = "a package has name and version, and nothing else";
    let none = Map::new();
    let members = element.as_object().unwrap_or(&none);
    if let Some(other) = members.keys().find(|member| !["name", "version"].contains(&&***member)) {
        return Err(format!("it has {other}, and {WANTED}"));
    }
    let name = members.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| format!("it has no name, and {WANTED}"))?;
    package(name, members.get("version").unwrap_or(&Value::Null))
}

fn package(name: &str, version: &Value) -> Result<OsPackage, String> {
    match version {
        Value::String(version) => Ok(OsPackage { name: name.to_owned(), version: version.clone() }),
        Value::Null => Err(format!("{name} has no version: * is the newest one")),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(format!("the version of {name} is not a text: write it in quotation marks"))
        }
    }
}

/// The file name in a URL, without its extension.
fn file_name(url: &str) -> Option<String> {
    let (_, file) = url.split(['?', '#']).next()?.rsplit_once('/')?;
    let name = file.rsplit_once('.').map_or(file, |(name, _)| name);
    (!name.is_empty()).then(|| name.to_owned())
}

/// The paths of the agent's arguments as they must be claimed.
fn argument_paths(host: &UpdaterHost) -> Vec<String> {
    match host {
        UpdaterHost::OsImage(from) => {
            let OsImageFrom { url_from, checksum_from, name_from, brings_kubelet: _ } = from;
            [url_from, checksum_from].into_iter().chain(name_from).cloned().collect()
        }
        UpdaterHost::OsPackages(from) => {
            let OsPackagesFrom { install_from, security_from, exclude: _, reboot: _ } = from;
            let install = install_from.iter().map(|path| format!("{path}/**"));
            install.chain(security_from.clone()).collect()
        }
    }
}

/// Whether a claimed path is that of an argument. Packages are claimed exactly: what is absent asks for nothing, so a path with
/// a typing error in a wider claim would be a change that is never made.
fn fits(host: &UpdaterHost, path: &ClaimPath, argument: &str) -> bool {
    match host {
        UpdaterHost::OsImage(_) => names(path, argument),
        UpdaterHost::OsPackages(_) => path.to_string() == argument,
    }
}

/// A claimed path that no step of the agent uses, if there is one.
pub(super) fn unused_claim<'a>(host: &UpdaterHost, claims: &'a [Claim]) -> Option<&'a ClaimPath> {
    let arguments = argument_paths(host);
    let mut paths = claims.iter().flat_map(|claim| &claim.paths);
    paths.find(|path| !arguments.iter().any(|argument| fits(host, path, argument)))
}

/// An argument of the agent that is not claimed, if there is one.
pub(super) fn unclaimed_argument(host: &UpdaterHost, claims: &[Claim]) -> Option<String> {
    let is_claimed = |argument: &String| {
        claims.iter().flat_map(|claim| &claim.paths).any(|path| fits(host, path, argument))
    };
    argument_paths(host).into_iter().find(|argument| !is_claimed(argument))
}

#[cfg(test)]
#[path = "host_part_tests.rs"]
mod tests;
