//! The HostConfiguration that updates a host to an image.
//!
//! A configuration is complete and declarative: anything left out is removed
//! (`docs/facts/trident.md#host-configuration`). Refit therefore submits the host's own
//! configuration from Trident with another image and Refit's health checks. Scripts of the host
//! stay, because they carry over data that the next root needs. Refit adds no scripts: each
//! submission of a configuration with scripts is a full update
//! (`docs/facts/trident.md#scripts-force-an-update`), so a configuration is submitted only if
//! another image is wanted.

use refit_kinds::refit::{HealthCheck, OsImageArgs};
use serde_json::{Map, Value, json};

use crate::host::work::WorkError;

const SCRIPTS: [&str; 3] = ["preServicing", "postProvision", "postConfigure"];
/// Default time that services in a new OS have to become healthy.
const HEALTH_SECONDS: i32 = 120;
/// Name prefix of Refit's health checks.
const CHECK_PREFIX: &str = "refit-";

/// The host's configuration with the image and health checks of a plan.
pub(super) fn configuration(current: &Value, wanted: &OsImageArgs) -> Result<Value, WorkError> {
    check(wanted)?;
    let mut config = current
        .as_object()
        .filter(|config| config.contains_key("storage"))
        .cloned()
        .ok_or_else(|| {
        WorkError::needs_person(
            "`trident get configuration` has no storage: the host was not installed by Trident",
        )
    })?;
    config.insert(
        "image".to_owned(),
        json!({ "url": wanted.url, "sha384": wanted.sha384.to_lowercase() }),
    );
    // The command line has no other option that leaves the reboot to the caller.
    object(&mut config, "internalParams").insert("noTransition".to_owned(), json!(true));
    let health = object(&mut config, "health");
    let mut checks: Vec<Value> = health
        .get("checks")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|check| !is_refit_check(check))
        .cloned()
        .collect();
    checks.extend(wanted.health_checks.iter().map(health_check));
    health.insert("checks".to_owned(), Value::Array(checks));
    Ok(Value::Object(config))
}

fn object<'a>(config: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let entry = config.entry(name).or_insert_with(|| json!({}));
    if !entry.is_object() {
        *entry = json!({});
    }
    entry.as_object_mut().expect("it was made an object")
}

fn is_refit_check(check: &Value) -> bool {
    check.get("name").and_then(Value::as_str).is_some_and(|name| name.starts_with(CHECK_PREFIX))
}

/// A health check of Refit. It always sets `runOn`, because an empty list never matches. It checks
/// services and runs no script: a script has no timeout, and if it hangs, the commit hangs forever
/// (`docs/facts/trident.md#a-check-without-runon` and
/// `docs/facts/trident.md#checks-without-a-timeout`).
fn health_check(check: &HealthCheck) -> Value {
    json!({
        "name": format!("{CHECK_PREFIX}{}", check.name),
        "runOn": ["ab-update"],
        "systemdServices": check.systemd_services,
        "timeoutSeconds": check.timeout_seconds.unwrap_or(HEALTH_SECONDS),
    })
}

/// Validates an image for Trident: a URL with a supported scheme, and the checksum of its metadata.
fn check(wanted: &OsImageArgs) -> Result<(), WorkError> {
    let known = ["https://", "http://", "file:///", "oci://"];
    let url = &wanted.url;
    if !known.iter().any(|scheme| url.starts_with(scheme)) || url.contains(char::is_whitespace) {
        return Err(WorkError::permanent(format!(
            "invalid osImage.url {url:?}: Trident accepts https://, http://, file:/// and oci://, \
             not a bare path"
        )));
    }
    let place = url.split_once("://").map_or("", |(_, rest)| rest);
    if place.split('/').next().is_some_and(|host| host.contains('@')) {
        return Err(WorkError::permanent(
            "osImage.url contains a user; Trident sends no credentials to registries and servers, \
             and a plan must not contain any",
        ));
    }
    let sum = &wanted.sha384;
    if sum.len() != 96 || !sum.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(WorkError::permanent(format!(
            "osImage.sha384 {sum:?} is not the sha384 of an image's metadata in hex: Trident checks no \
             signature, so only this value identifies the image"
        )));
    }
    for check in &wanted.health_checks {
        if check.systemd_services.is_empty() {
            return Err(WorkError::permanent(format!(
                "health check {} of osImage lists no service",
                check.name
            )));
        }
    }
    Ok(())
}

/// Settings in a host's own configuration that do not have the expected effect
/// (`docs/facts/trident.md#traps`). They are logged in the step's output, because the owner of the
/// host has to correct them.
pub(super) fn warnings(config: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for phase in SCRIPTS {
        for script in list(config, &["scripts", phase]) {
            let name = name(script);
            let runs_on: Vec<&str> = words(script, "runOn");
            if runs_on.is_empty() {
                found.push(format!("script {name} of {phase} has no runOn: it never runs"));
            } else if phase == "preServicing" && !runs_on.contains(&"all") {
                found.push(format!(
                    "script {name} of preServicing runs on {}: during an update, only `all` \
                     matches",
                    runs_on.join(", ")
                ));
            }
        }
    }
    for check in list(config, &["health", "checks"]) {
        let name = name(check);
        if words(check, "runOn").is_empty() {
            found.push(format!("health check {name} has no runOn: it never runs"));
        }
        let content = check.get("content").and_then(Value::as_str).unwrap_or_default();
        if (check.get("path").is_some() || !content.is_empty()) && !content.contains("timeout ") {
            found.push(format!(
                "health check {name} is a script without `timeout`: if it hangs, the commit hangs \
                 too"
            ));
        }
    }
    for file in list(config, &["os", "additionalFiles"]) {
        if file.get("permissions").is_none() {
            let path = file.get("destination").and_then(Value::as_str).unwrap_or("?");
            found
                .push(format!("additional file {path} has no permissions: it gets 0664, not 0644"));
        }
    }
    let verity = list(config, &["storage", "verity"])
        .any(|device| device.get("name").and_then(Value::as_str) == Some("root"));
    if verity && config.get("os").is_some_and(|os| os.as_object().is_some_and(|os| !os.is_empty()))
    {
        found.push(
            "the root is verified by dm-verity: settings of `os` may be ignored without an error"
                .to_owned(),
        );
    }
    found
}

/// The entries of a list in a configuration; none if it is absent.
pub(super) fn list<'a>(config: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> {
    let found = path.iter().try_fold(config, |value, name| value.get(name));
    found.and_then(Value::as_array).into_iter().flatten()
}

fn name(value: &Value) -> &str {
    value.get("name").and_then(Value::as_str).unwrap_or("?")
}

fn words<'a>(value: &'a Value, name: &str) -> Vec<&'a str> {
    let list = value.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether a configuration has scripts: submitting it is a full update, even if nothing has
/// changed.
pub(super) fn has_scripts(config: &Value) -> bool {
    SCRIPTS.iter().any(|phase| list(config, &["scripts", phase]).next().is_some())
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::FailureKind;

    use super::*;

    fn wanted() -> OsImageArgs {
        OsImageArgs {
            name: "Azure Linux 3.0".to_owned(),
            url: "https://images.example/new.cosi".to_owned(),
            sha384: "AB".repeat(48),
            health_checks: vec![HealthCheck {
                name: "kubelet".to_owned(),
                systemd_services: vec![
                    "containerd.service".to_owned(),
                    "kubelet.service".to_owned(),
                ],
                timeout_seconds: None,
            }],
            ..OsImageArgs::default()
        }
    }

    fn current() -> Value {
        json!({
            "image": { "url": "https://images.example/old.cosi", "sha384": "00" },
            "storage": { "disks": [{ "id": "os" }] },
            "scripts": { "postProvision": [{ "name": "carry-over", "runOn": ["ab-update"], "content": "cp" }] },
            "os": { "selinux": { "mode": "enforcing" } },
            "health": { "checks": [
                { "name": "theirs", "runOn": ["ab-update"], "systemdServices": ["sshd.service"] },
                { "name": "refit-old", "runOn": ["ab-update"], "systemdServices": ["x.service"] },
            ] },
        })
    }

    #[test]
    fn only_the_image_and_health_checks_of_a_configuration_change() {
        let config = configuration(&current(), &wanted()).unwrap();
        let image = json!({ "url": "https://images.example/new.cosi", "sha384": "ab".repeat(48) });
        assert_eq!(config["image"], image);
        for kept in ["storage", "scripts", "os"] {
            assert_eq!(config[kept], current()[kept], "{kept}");
        }
        let names: Vec<&str> = list(&config, &["health", "checks"]).map(name).collect();
        assert_eq!(names, ["theirs", "refit-kubelet"]);
    }

    #[test]
    fn our_health_checks_always_run_and_never_hang() {
        let config = configuration(&current(), &wanted()).unwrap();
        let added =
            list(&config, &["health", "checks"]).find(|check| is_refit_check(check)).unwrap();
        assert_eq!(added["runOn"], json!(["ab-update"]), "not at a runtime update either");
        assert_eq!(added["timeoutSeconds"], 120);
        assert!(added.get("content").is_none());
    }

    #[test]
    fn the_reboot_is_left_to_the_caller() {
        let config = configuration(&current(), &wanted()).unwrap();
        assert_eq!(config["internalParams"]["noTransition"], true);
        let mut other = current();
        other["internalParams"] = json!({ "httpConnectionTimeoutSeconds": 20 });
        let config = configuration(&other, &wanted()).unwrap();
        assert_eq!(config["internalParams"]["httpConnectionTimeoutSeconds"], 20);
    }

    #[test]
    fn a_bare_path_is_no_url() {
        for bad in
            ["/srv/new.cosi", "file:/srv/new.cosi", "images.example/x", "https://a b", "ftp://x"]
        {
            let image = OsImageArgs { url: bad.to_owned(), ..wanted() };
            let error = configuration(&current(), &image).unwrap_err();
            assert_eq!(error.kind, FailureKind::Final, "{bad}");
        }
        for good in ["file:///srv/new.cosi", "oci://registry.example/os:3"] {
            let image = OsImageArgs { url: good.to_owned(), ..wanted() };
            assert!(configuration(&current(), &image).is_ok(), "{good}");
        }
    }

    #[test]
    fn an_image_without_its_sum_is_refused() {
        for bad in ["", "ignored", "abc", &"ab".repeat(32)] {
            let image = OsImageArgs { sha384: bad.to_owned(), ..wanted() };
            assert!(configuration(&current(), &image).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn credentials_in_a_url_are_refused() {
        let image =
            OsImageArgs { url: "oci://bob:secret@registry.example/os:3".to_owned(), ..wanted() };
        let error = configuration(&current(), &image).unwrap_err();
        assert!(error.message.contains("no credentials") && !error.message.contains("secret"));
    }

    #[test]
    fn a_host_not_installed_by_trident_needs_an_operator() {
        let error = configuration(&json!({}), &wanted()).unwrap_err();
        assert_eq!(error.kind, FailureKind::NeedsPerson);
    }

    #[test]
    fn ineffective_configuration_is_reported() {
        let config = json!({
            "scripts": {
                "preServicing": [
                    { "name": "gate", "runOn": ["ab-update"] },
                    { "name": "good", "runOn": ["all"] },
                ],
                "postProvision": [{ "name": "never" }],
            },
            "health": { "checks": [
                { "name": "hangs", "runOn": ["ab-update"], "content": "wait-for-it" },
                { "name": "fine", "runOn": ["ab-update"], "content": "timeout 60 wait-for-it" },
            ] },
            "os": { "additionalFiles": [{ "destination": "/etc/x" }] },
            "storage": { "verity": [{ "name": "root" }] },
        });
        let found = warnings(&config).join("\n");
        for words in [
            "script gate of preServicing runs on ab-update: during an update, only `all` matches",
            "script never of postProvision has no runOn: it never runs",
            "health check hangs is a script without `timeout`",
            "additional file /etc/x has no permissions",
            "verified by dm-verity",
        ] {
            assert!(found.contains(words), "{words}\n{found}");
        }
        assert_eq!(found.lines().count(), 5, "{found}");
    }
}
