//! The kubelet's flags and its API server endpoint.
//!
//! Flags are in `kubeadm-flags.env`, which kubeadm writes, and in files of the administrator. A
//! flag that the next version no longer supports keeps the kubelet from starting
//! (`docs/facts/kubeadm.md#kubelet-flags`): `kubelet_probe` checks them.

use refit_kinds::refit::KubeletArgs;
use refit_kinds::version::KubernetesVersion;

use super::{
    Site,
    files::{
        atomic::{self, Access},
        keep,
    },
    kubeadm::{KUBELET_FLAGS, MANIFESTS},
    work::WorkError,
};

/// Files with the kubelet's flags, and the variable in each: kubeadm's file first, then the
/// administrator's.
pub(super) const FILES: [(&str, &str); 3] = [
    (KUBELET_FLAGS, "KUBELET_KUBEADM_ARGS"),
    ("/etc/default/kubelet", "KUBELET_EXTRA_ARGS"),
    ("/etc/sysconfig/kubelet", "KUBELET_EXTRA_ARGS"),
];
const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
/// The minor version whose kubelet cannot use an API server of the previous minor version behind a
/// load balancer (kubernetes/kubernetes#127316).
const LOCAL_ENDPOINT_MINOR: u64 = 31;

/// Every kubelet flag in these files, with its file.
pub(super) fn flags(site: &Site) -> Vec<(String, &'static str)> {
    FILES
        .into_iter()
        .flat_map(|(file, variable)| {
            let text = site.read(file);
            let value = text.lines().filter_map(|line| value_of(line, variable)).next_back();
            words(&value.unwrap_or_default()).into_iter().map(move |flag| (flag, file))
        })
        .filter(|(flag, _)| flag.starts_with('-'))
        .collect()
}

/// Sets and removes flags. The previous files are kept in a group of the plan, once.
pub(super) fn set_flags(
    site: &Site,
    plan: &str,
    group: &str,
    args: &KubeletArgs,
) -> Result<(), WorkError> {
    check(args)?;
    for (file, variable) in FILES {
        let text = site.read(file);
        let own = file == FILES[0].0;
        let changed = with_flags(&text, variable, args, own);
        if changed == text {
            continue;
        }
        keep::keep(site, plan, group, file)?;
        site.log(&format!("updated the flags in {file}"));
        let path = site.path(file);
        let access = Access::like(&path, 0o644);
        atomic::replace(&path, changed.as_bytes(), access)?;
    }
    Ok(())
}

/// Whether the flags are as planned.
pub(super) fn has_flags(site: &Site, args: &KubeletArgs) -> bool {
    FILES.into_iter().all(|(file, variable)| {
        let text = site.read(file);
        with_flags(&text, variable, args, file == FILES[0].0) == text
    })
}

fn check(args: &KubeletArgs) -> Result<(), WorkError> {
    let name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    // systemd splits the line at blanks and interprets quotes, `$` and `\`.
    let value = |text: &str| {
        !text.chars().any(|c| c.is_whitespace() || c.is_control() || "\"'\\$%".contains(c))
    };
    let mut names = args.extra_args.iter().map(|arg| &arg.name).chain(&args.remove_args);
    if let Some(bad) = names.find(|text| !name(text)) {
        return Err(WorkError::permanent(format!("invalid kubelet flag {bad:?}")));
    }
    match args.extra_args.iter().find(|arg| !value(&arg.value)) {
        Some(bad) => Err(WorkError::permanent(format!(
            "the value {:?} of the kubelet's flag {} cannot be written to an environment file: it \
             has blanks, quotes, $, % or \\",
            bad.value, bad.name
        ))),
        None => Ok(()),
    }
}

/// The text with flags set and removed. Flags are set only in kubeadm's own file, and removed in
/// every file.
fn with_flags(text: &str, variable: &str, args: &KubeletArgs, own: bool) -> String {
    let gone = |flag: &str| {
        let bare = name_of(flag);
        args.remove_args.iter().any(|name| name == bare)
            || (own && args.extra_args.iter().any(|arg| arg.name == bare))
    };
    let added = |flags: &mut Vec<String>| {
        if own {
            let new = args.extra_args.iter().filter(|arg| !args.remove_args.contains(&arg.name));
            flags.extend(new.map(|arg| format!("--{}={}", arg.name, arg.value)));
        }
    };
    let (mut found, mut changed) = (false, false);
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| {
            let Some(value) = value_of(line, variable) else {
                return line.to_owned();
            };
            found = true;
            let before = words(&value);
            let mut flags = without(&before, gone);
            added(&mut flags);
            if flags == before {
                return line.to_owned();
            }
            changed = true;
            format!("{variable}=\"{}\"", flags.join(" "))
        })
        .collect();
    if !found {
        let mut flags = Vec::new();
        added(&mut flags);
        if flags.is_empty() {
            return text.to_owned();
        }
        lines.push(format!("{variable}=\"{}\"", flags.join(" ")));
    } else if !changed {
        return text.to_owned();
    }
    lines.join("\n") + "\n"
}

/// The words without some flags. A value in a word of its own is removed with its flag.
fn without(words: &[String], gone: impl Fn(&str) -> bool) -> Vec<String> {
    let mut left = Vec::new();
    let mut dropping = false;
    for word in words {
        if word.starts_with('-') {
            dropping = gone(word);
            if dropping {
                dropping = !word.contains('=');
                continue;
            }
        } else if dropping {
            dropping = false;
            continue;
        }
        left.push(word.clone());
    }
    left
}

fn name_of(flag: &str) -> &str {
    let bare = flag.trim_start_matches('-');
    bare.split_once('=').map_or(bare, |(name, _)| name)
}

fn value_of(line: &str, variable: &str) -> Option<String> {
    let value = line.trim().strip_prefix(variable)?.strip_prefix('=')?.trim();
    let unquoted =
        ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    Some(unquoted.unwrap_or(value).to_owned())
}

fn words(value: &str) -> Vec<String> {
    value.split_whitespace().map(str::to_owned).collect()
}

/// On a control plane that is upgraded to v1.31: points the kubelet to the API server of its own
/// host, which has its version, instead of a load balancer with older API servers behind it.
pub(super) fn use_local_endpoint(
    site: &Site,
    plan: &str,
    version: &KubernetesVersion,
) -> Result<(), WorkError> {
    if version.minor() != LOCAL_ENDPOINT_MINOR {
        return Ok(());
    }
    let manifest = site.read(&format!("{MANIFESTS}/kube-apiserver.yaml"));
    let flag = |name: &str| {
        manifest
            .lines()
            .find_map(|line| line.trim().strip_prefix(&format!("- --{name}=")))
            .map(str::to_owned)
    };
    let (Some(address), port) = (flag("advertise-address"), flag("secure-port")) else {
        return Ok(());
    };
    let port = port.unwrap_or_else(|| "6443".to_owned());
    let host = if address.contains(':') { format!("[{address}]") } else { address };
    let text = site.read(KUBELET_CONF);
    let changed: Vec<String> = text
        .lines()
        .map(|line| match line.split_once("server:") {
            Some((before, _)) if before.trim().is_empty() => {
                format!("{before}server: https://{host}:{port}")
            }
            _ => line.to_owned(),
        })
        .collect();
    let changed = changed.join("\n") + "\n";
    if text.is_empty() || changed == text {
        return Ok(());
    }
    keep::keep(site, plan, keep::KUBELET, KUBELET_CONF)?;
    site.log(&format!("pointed {KUBELET_CONF} to the API server of this host"));
    let path = site.path(KUBELET_CONF);
    let access = Access::like(&path, 0o600);
    atomic::replace(&path, changed.as_bytes(), access)?;
    Ok(())
}

#[cfg(test)]
#[path = "kubelet_tests.rs"]
mod tests;
