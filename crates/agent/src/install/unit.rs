//! The files of the systemd service on a host.

use std::{collections::BTreeMap, fmt::Write as _};

use super::layout::{BASE, PROGRAM};

/// The unit from the packages, which starts `/usr/bin/refit-agent`.
const PACKAGED: &str = include_str!("../../../../deploy/agent/refit-agent.service");
const PACKAGED_START: &str = "ExecStart=/usr/bin/refit-agent\n";

/// Name of the service.
pub(crate) const SERVICE: &str = "refit-agent.service";
/// Path of the unit.
pub(crate) const UNIT_FILE: &str = "/etc/systemd/system/refit-agent.service";
/// Path of the settings that an installation writes.
pub(crate) const INSTALLED_SETTINGS: &str = "/etc/refit-agent/install.env";

/// The unit of an agent that manages its own versions: the previous version watches a new one.
pub fn unit() -> String {
    PACKAGED.replace(
        PACKAGED_START,
        &format!(
            "# The previous version watches a new one until it has reported.\n\
             ExecStartPre=-{BASE}/previous/{PROGRAM} guard\n\
             ExecStart={BASE}/current/{PROGRAM}\n"
        ),
    )
}

/// A setting that systemd would not read literally.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid --set {setting:?}, expected NAME=VALUE with a name of capital letters, digits and \
     `_` and a value without quotes, backslashes and line breaks"
)]
pub struct BadSetting {
    setting: String,
}

/// Reads `NAME=VALUE`.
pub fn setting(text: &str) -> Result<(String, String), BadSetting> {
    let bad = || BadSetting { setting: text.to_owned() };
    let (name, value) = text.split_once('=').ok_or_else(bad)?;
    let plain_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let named = name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(plain_name);
    let plain = value.chars().all(|c| !c.is_control() && !"\"'\\".contains(c));
    (named && plain).then(|| (name.to_owned(), value.to_owned())).ok_or_else(bad)
}

/// Merges new settings into the text of the settings file. Other lines are kept; a setting without
/// a value is removed.
pub(crate) fn settings_file(there: &str, settings: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    if there.is_empty() {
        text += "# Written by refit-agent install. Your own settings go to agent.env next to it.\n";
    }
    let mut left = settings.clone();
    for line in there.lines() {
        let name = line.split_once('=').map_or("", |(name, _)| name.trim());
        let given = settings.get(name);
        // systemd uses the last line of a repeated name; one line per written setting is enough.
        match given {
            None => writeln!(text, "{line}").expect("writing to a String cannot fail"),
            Some(_) => {
                if let Some(value) = left.remove(name) {
                    add(&mut text, name, &value);
                }
            }
        }
    }
    for (name, value) in &left {
        add(&mut text, name, value);
    }
    text
}

fn add(text: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        writeln!(text, "{name}=\"{value}\"").expect("writing to a String cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_unit_starts_the_guard_and_the_current_version() {
        let unit = unit();
        assert_ne!(unit, PACKAGED);
        assert!(!unit.contains("/usr/bin/refit-agent"));
        assert!(unit.contains("\nExecStart=/opt/refit/agent/current/refit-agent\n"));
        assert!(unit.contains("\nExecStartPre=-/opt/refit/agent/previous/refit-agent guard\n"));
    }

    #[test]
    fn a_setting_that_systemd_would_change_is_invalid() {
        let read = setting("NODE_NAME=n1.example").unwrap();
        assert_eq!(read, ("NODE_NAME".to_owned(), "n1.example".to_owned()));
        let text = settings_file("", &BTreeMap::from([read]));
        assert!(text.ends_with("\nNODE_NAME=\"n1.example\"\n"), "{text}");
        for bad in ["x", "a=b", "=x", "A=\"", "A=x\ny", "A=\\", "1A=x"] {
            assert!(setting(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn new_settings_replace_old_ones_and_keep_other_lines() {
        let there = "# mine\nHTTPS_PROXY=http://p:3128\nNODE_NAME=\"old\"\nREFIT_LOG=debug\n";
        let given = [("NODE_NAME", "n1"), ("REFIT_LOG", ""), ("REFIT_X", "y")];
        let given = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let text = settings_file(there, &given.into());
        let expected = "# mine\nHTTPS_PROXY=http://p:3128\nNODE_NAME=\"n1\"\nREFIT_X=\"y\"\n";
        assert_eq!(text, expected);
        assert_eq!(settings_file(&text, &BTreeMap::new()), text);
    }
}
