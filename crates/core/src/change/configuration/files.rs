//! Which files of a KubeadmConfig a running host can get.

use std::collections::BTreeMap;

use refit_cluster_api::host_configuration::{ConfigFile, ContentFrom};
use refit_kinds::{
    keys,
    refit::{ChangedConfiguration, ConfigurationPart, FileEncoding, SecretSum},
};

use super::{ConfigurationRules, with_actions};
use crate::node::{Actions, actions_of_file};

/// The files that differ, or why the host cannot get them.
pub(super) fn changed(
    from: &[ConfigFile],
    to: &[ConfigFile],
    rules: &ConfigurationRules,
) -> Result<ChangedConfiguration, String> {
    let (before, after) = (by_path(from)?, by_path(to)?);
    if let Some(path) = before.keys().find(|path| !after.contains_key(*path)) {
        return Err(format!(
            "what a host had at {path} before is not known, so the file is not removed"
        ));
    }
    let differs = |file: &&ConfigFile| before.get(file.path.as_str()) != Some(file);
    let mut files: Vec<&ConfigFile> = to.iter().filter(differs).collect();
    if files.is_empty() {
        // Only their order differs: all are written as they are.
        files = to.iter().collect();
    }
    let mut part = ConfigurationPart::default();
    let mut actions = Actions::none();
    for file in files {
        check(file, before.get(file.path.as_str()).copied())?;
        part.files.push(file.path.clone());
        part.secrets.extend(secret(file, rules)?);
        actions = actions.merge(actions_of_file(rules.policy.as_ref(), &file.path));
    }
    part.files.sort();
    part.secrets.sort();
    part.secrets.dedup();
    with_actions(part, actions)
}

fn by_path(files: &[ConfigFile]) -> Result<BTreeMap<&str, &ConfigFile>, String> {
    let mut all = BTreeMap::new();
    for file in files {
        if all.insert(file.path.as_str(), file).is_some() {
            return Err(format!("file {} is listed twice", file.path));
        }
    }
    Ok(all)
}

fn check(file: &ConfigFile, before: Option<&ConfigFile>) -> Result<(), String> {
    let ConfigFile { path, encoding, others, .. } = file;
    let appends = |file: &ConfigFile| file.append == Some(true);
    if appends(file) || before.is_some_and(appends) {
        return Err(format!("file {path} is appended to what its image has, which is not known"));
    }
    let is_plain =
        path.starts_with('/') && !path.ends_with('/') && !path.split('/').any(|part| part == "..");
    if !is_plain {
        return Err(format!("{path:?} is not the absolute path of a file"));
    }
    if let Some((field, _)) = others.iter().next() {
        return Err(match field.as_str() {
            "contentFormat" => format!("the content of file {path} is a template"),
            field => format!("file {path} has {field}, which only a new machine gets"),
        });
    }
    encoding_of(encoding).map(drop).ok_or_else(|| format!("file {path} has an unknown encoding"))
}

/// The encoding of a file; `None` if it is not known.
pub(super) fn encoding_of(encoding: &str) -> Option<FileEncoding> {
    match encoding {
        "" => Some(FileEncoding::Plain),
        "base64" => Some(FileEncoding::Base64),
        "gzip" => Some(FileEncoding::Gzip),
        "gzip+base64" => Some(FileEncoding::GzipBase64),
        _ => None,
    }
}

/// The Secret with the content, and the sha256 that the content must have.
fn secret(file: &ConfigFile, rules: &ConfigurationRules) -> Result<Option<SecretSum>, String> {
    let Some(ContentFrom { secret }) = &file.content_from else {
        return Ok(None);
    };
    let (name, key) = (secret.name.clone(), secret.key.clone());
    match rules.secrets.get(&(name.clone(), key.clone())) {
        Some(sha256) => Ok(Some(SecretSum { name, key, sha256: sha256.clone() })),
        None => Err(format!(
            "file {} has the content of Secret {name}, and nothing shows whether a host has it: annotate the owner with {}: \
             {name}/{key}=SHA256",
            file.path,
            keys::SECRET_SHA256
        )),
    }
}
