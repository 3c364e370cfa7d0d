//! Time servers of the host, for chrony or systemd-timesyncd.

mod replace;

use std::path::PathBuf;

use refit_kinds::refit::NtpArgs;
use serde::{Deserialize, Serialize};

use super::{
    Evidence, Program, Site,
    files::{
        atomic::{self, Access},
        keep,
    },
    work::WorkError,
};

/// What happens to the other servers of the host's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// They stay.
    Kept,
    /// They are disabled.
    Disabled,
}

/// A time daemon, and the file for its servers.
struct Daemon {
    services: &'static [&'static str],
    /// A file that exists if the daemon is installed.
    sign: &'static str,
    file: &'static str,
}

const DAEMONS: [Daemon; 3] = [
    Daemon {
        services: &["chrony.service"],
        sign: "/etc/chrony/chrony.conf",
        file: "/etc/chrony/sources.d/refit.sources",
    },
    Daemon {
        services: &["chronyd.service"],
        sign: "/etc/chrony.conf",
        file: "/etc/chrony.d/refit.conf",
    },
    Daemon {
        services: &["systemd-timesyncd.service"],
        sign: "/etc/systemd/timesyncd.conf",
        file: "/etc/systemd/timesyncd.conf.d/refit.conf",
    },
];

impl Daemon {
    fn is_timesyncd(&self) -> bool {
        self.sign.ends_with("timesyncd.conf")
    }
}

fn daemon(site: &Site) -> Option<&'static Daemon> {
    DAEMONS.iter().find(|daemon| site.path(daemon.sign).exists())
}

fn text(daemon: &Daemon, args: &NtpArgs) -> String {
    if daemon.is_timesyncd() {
        return format!("# Written by refit-agent.\n[Time]\nNTP={}\n", args.servers.join(" "));
    }
    let mut text = "# Written by refit-agent.\n".to_owned();
    for server in &args.servers {
        text.push_str("server ");
        text.push_str(server);
        text.push_str(" iburst\n");
    }
    text
}

fn is_server(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".:-_".contains(&b))
}

/// Sets the servers, and starts or stops the daemon.
pub(super) async fn apply(
    site: &Site,
    plan: &str,
    step: &str,
    args: &NtpArgs,
    others: Others,
) -> Result<(), WorkError> {
    if let Some(bad) = args.servers.iter().find(|server| !is_server(server)) {
        return Err(WorkError::permanent(format!("invalid host name {bad:?} in ntp.servers")));
    }
    let Some(daemon) = daemon(site) else {
        if !args.enabled {
            return Ok(());
        }
        return Err(WorkError::needs_person(
            "the host has neither chrony nor systemd-timesyncd; install one of them",
        ));
    };
    remember(site, plan, step, daemon).await?;
    if !args.enabled {
        for service in daemon.services {
            let call = site.call(Program::Systemctl, ["disable", "--now", service]);
            site.run(&call).await?;
        }
        return Ok(());
    }
    // Even if no file changes: an attempt that was interrupted may have written the files without a restart.
    let restarts = !args.servers.is_empty();
    if restarts {
        match others {
            Others::Kept => add(site, plan, step, daemon, args)?,
            Others::Disabled => replace::write(site, plan, step, daemon, &args.servers)?,
        };
    }
    for service in daemon.services {
        let call = site.call(Program::Systemctl, ["enable", "--now", service]);
        site.run(&call).await?;
        if restarts {
            let call = site.call(Program::Systemctl, ["restart", service]);
            site.run(&call).await?;
        }
    }
    Ok(())
}

/// Adds the servers to those of the host. Returns whether a file changed.
fn add(
    site: &Site,
    plan: &str,
    step: &str,
    daemon: &Daemon,
    args: &NtpArgs,
) -> Result<bool, WorkError> {
    let text = text(daemon, args);
    let access = Access::of_mode(0o644);
    let file = site.path(daemon.file);
    let mut changed = false;
    if !atomic::is(&file, text.as_bytes(), access) {
        keep::keep(site, plan, step, daemon.file)?;
        changed = atomic::replace(&file, text.as_bytes(), access)?;
    }
    // Last: chrony does not start without a file that it is to include.
    Ok(include(site, plan, step, daemon)? || changed)
}

/// The state of a service before a step.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceState {
    service: String,
    /// `enabled`, `disabled`, or another unit file state of systemd.
    at_boot: String,
    active: bool,
}

fn remembered(site: &Site, plan: &str, step: &str) -> PathBuf {
    keep::directory(site, plan, step).join("services.json")
}

/// Records the state of the daemon's services, once.
async fn remember(site: &Site, plan: &str, step: &str, daemon: &Daemon) -> Result<(), WorkError> {
    let path = remembered(site, plan, step);
    if path.exists() {
        return Ok(());
    }
    let mut all = Vec::new();
    for service in daemon.services {
        let show = ["show", service, "--property=UnitFileState,ActiveState"];
        let answer = site.ask(Program::Systemctl, show).await?;
        let field = |name: &str| {
            let line = answer.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().to_owned()
        };
        all.push(ServiceState {
            service: (*service).to_owned(),
            at_boot: field("UnitFileState="),
            active: field("ActiveState=") == "active",
        });
    }
    let text = serde_json::to_vec(&all).expect("plain data serialises to JSON");
    atomic::replace(&path, &text, Access::of_mode(0o600))?;
    Ok(())
}

/// Restores the state of the services before a step, with their previous servers. Does nothing if
/// the step changed no service.
pub(super) async fn put_back(site: &Site, plan: &str, step: &str) -> Result<(), WorkError> {
    let path = remembered(site, plan, step);
    let Some((text, _)) = atomic::read(&path)? else {
        return Ok(());
    };
    let all: Vec<ServiceState> = serde_json::from_slice(&text).map_err(|error| {
        WorkError::needs_person(format!(
            "cannot read {}, so the previous time service is unknown: {error}",
            path.display()
        ))
    })?;
    for before in all {
        let at_boot = match before.at_boot.as_str() {
            "enabled" => Some("enable"),
            "disabled" => Some("disable"),
            // Refit does not set other states, such as static, masked or linked.
            _ => None,
        };
        // The restart drops the servers that were removed.
        let now = if before.active { "restart" } else { "stop" };
        for verb in at_boot.into_iter().chain([now]) {
            let call = site.call(Program::Systemctl, [verb, &before.service]);
            site.run(&call).await?;
        }
    }
    Ok(())
}

/// Makes the daemon read its file: chrony reads no other file unless its main file names it. `include` exists in every version (`docs/facts/hosts.md#time-servers`).
fn include(site: &Site, plan: &str, step: &str, daemon: &Daemon) -> Result<bool, WorkError> {
    let main = site.read(daemon.sign);
    if daemon.is_timesyncd() || is_read(&main, daemon.file) {
        return Ok(false);
    }
    keep::keep(site, plan, step, daemon.sign)?;
    let changed = format!("{}\ninclude {}\n", main.trim_end(), daemon.file);
    let path = site.path(daemon.sign);
    let access = Access::like(&path, 0o644);
    atomic::replace(&path, changed.as_bytes(), access)
}

/// Whether chrony's main file makes it read a file.
fn is_read(main: &str, file: &str) -> bool {
    let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    main.lines().any(|line| {
        let mut words = line.split_whitespace();
        let directive = words.next().unwrap_or_default().to_ascii_lowercase();
        let wanted = match &*directive {
            "confdir" | "sourcedir" => directory,
            "include" => file,
            _ => return false,
        };
        words.any(|word| word.trim_end_matches('/') == wanted)
    })
}

/// Whether the servers are set.
pub(super) fn check(site: &Site, args: &NtpArgs, others: Others) -> Evidence {
    let Some(daemon) = daemon(site) else {
        return Evidence::from_check(!args.enabled, || {
            "the host has neither chrony nor systemd-timesyncd".to_owned()
        });
    };
    if !args.enabled || args.servers.is_empty() {
        return Evidence::Done;
    }
    let other = match others {
        Others::Kept => {
            let is_included =
                daemon.is_timesyncd() || is_read(&site.read(daemon.sign), daemon.file);
            let is_set = is_included && site.read(daemon.file) == text(daemon, args);
            (!is_set).then(|| daemon.file.to_owned())
        }
        Others::Disabled => match replace::changes(site, daemon, &args.servers) {
            Ok(changes) => changes.into_iter().next().map(|(path, _)| path),
            Err(error) => return Evidence::Missing { what: error.message },
        },
    };
    Evidence::from_check(other.is_none(), || {
        format!("{} does not list the planned servers", other.as_deref().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::site::Tool;

    fn site(sign: &str) -> (tempfile::TempDir, Site) {
        let directory = tempfile::tempdir().unwrap();
        let tool = Tool { path: "/bin/echo".to_owned(), ..Tool::default() };
        let site = Site::at(directory.path().join("root"), directory.path().join("state"))
            .with_tool(Program::Systemctl, tool);
        let sign = site.path(sign);
        fs::create_dir_all(sign.parent().unwrap()).unwrap();
        fs::create_dir_all(site.state()).unwrap();
        fs::write(sign, "# mine\n").unwrap();
        (directory, site)
    }

    fn servers() -> NtpArgs {
        NtpArgs { enabled: true, servers: vec!["ntp.example".to_owned(), "10.0.0.1".to_owned()] }
    }

    #[tokio::test]
    async fn each_daemon_gets_its_servers_and_loses_them_on_rollback() {
        for (sign, words) in [
            (DAEMONS[0].sign, "server ntp.example iburst\nserver 10.0.0.1 iburst\n"),
            (DAEMONS[1].sign, "server ntp.example iburst\n"),
            (DAEMONS[2].sign, "[Time]\nNTP=ntp.example 10.0.0.1\n"),
        ] {
            let (_directory, site) = site(sign);
            assert!(matches!(check(&site, &servers(), Others::Kept), Evidence::Missing { .. }));
            apply(&site, "p", "ntp", &servers(), Others::Kept).await.unwrap();
            assert_eq!(check(&site, &servers(), Others::Kept), Evidence::Done);
            let daemon = daemon(&site).unwrap();
            assert!(site.read(daemon.file).contains(words), "{sign}");
            let log = fs::read_to_string(site.state().join("host.log")).unwrap();
            assert!(log.contains(&format!("restart {}", daemon.services[0])), "{log}");
            keep::put_back(&site, "p", "ntp").unwrap();
            assert!(!site.path(daemon.file).exists());
            assert_eq!(site.read(sign), "# mine\n");
        }
    }

    #[tokio::test]
    async fn servers_that_an_interrupted_attempt_wrote_are_loaded_by_the_next_one() {
        let (_directory, site) = site(DAEMONS[0].sign);
        let daemon = daemon(&site).unwrap();
        add(&site, "p", "ntp", daemon, &servers()).unwrap();
        apply(&site, "p", "ntp", &servers(), Others::Kept).await.unwrap();
        let log = fs::read_to_string(site.state().join("host.log")).unwrap();
        assert!(log.contains(&format!("restart {}", daemon.services[0])), "{log}");
    }

    #[tokio::test]
    async fn the_main_file_of_chrony_names_the_file_with_the_servers_once() {
        for (at, line) in [
            (0, "sourcedir /run/chrony-dhcp /etc/chrony/sources.d/"),
            (0, "include /etc/chrony/sources.d/refit.sources"),
            (1, "confdir /etc/chrony.d"),
        ] {
            let daemon = &DAEMONS[at];
            let (_directory, site) = site(daemon.sign);
            let main = site.path(daemon.sign);
            fs::write(&main, format!("driftfile /a\n{line}\n")).unwrap();
            apply(&site, "p", "ntp", &servers(), Others::Kept).await.unwrap();
            assert_eq!(site.read(daemon.sign), format!("driftfile /a\n{line}\n"));
            fs::write(&main, format!("driftfile /a\n# {line}\n")).unwrap();
            let evidence = check(&site, &servers(), Others::Kept);
            assert!(matches!(evidence, Evidence::Missing { .. }), "it is not read any more");
            apply(&site, "p", "ntp", &servers(), Others::Kept).await.unwrap();
            let included = format!("driftfile /a\n# {line}\ninclude {}\n", daemon.file);
            assert_eq!(site.read(daemon.sign), included);
            assert_eq!(check(&site, &servers(), Others::Kept), Evidence::Done);
        }
    }

    #[tokio::test]
    async fn a_rollback_restores_the_state_of_the_daemon() {
        use std::os::unix::fs::PermissionsExt as _;
        let (directory, site) = site(DAEMONS[0].sign);
        let program = directory.path().join("systemctl");
        let set_state = |state: &str, active: &str| {
            let script = format!(
                "#!/bin/sh\ntest \"$1\" = show && printf 'UnitFileState={state}\\nActiveState={active}\\n'\n\
                 exit 0\n"
            );
            fs::write(&program, script).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let tool = Tool { path: program.display().to_string(), ..Tool::default() };
        let site = site.with_tool(Program::Systemctl, tool);
        let calls = |site: &Site| {
            let log = fs::read_to_string(site.state().join("host.log")).unwrap_or_default();
            let calls = log.lines().filter_map(|line| line.split("systemctl ").nth(1));
            calls.map(str::to_owned).collect::<Vec<_>>()
        };
        for (plan, args, state, active, back) in [
            ("off", NtpArgs::default(), "enabled", "active", ["enable", "restart"]),
            ("on", servers(), "enabled", "active", ["enable", "restart"]),
            ("new", servers(), "disabled", "inactive", ["disable", "stop"]),
        ] {
            set_state(state, active);
            apply(&site, plan, "ntp", &args, Others::Kept).await.unwrap();
            // The retry does not record the changes of the first attempt as the previous state.
            set_state("disabled", "inactive");
            apply(&site, plan, "ntp", &args, Others::Kept).await.unwrap();
            let before = calls(&site).len();
            put_back(&site, plan, "ntp").await.unwrap();
            keep::put_back(&site, plan, "ntp").unwrap();
            let expected = back.map(|verb| format!("{verb} chrony.service"));
            assert_eq!(calls(&site)[before..], expected, "{plan}");
        }
        put_back(&site, "p", "files").await.unwrap();
    }

    #[tokio::test]
    async fn a_host_without_a_daemon_needs_an_operator() {
        let (_directory, site) = site("/etc/other");
        let error = apply(&site, "p", "ntp", &servers(), Others::Kept).await.unwrap_err();
        assert!(error.message.contains("neither chrony"), "{error}");
        let off = NtpArgs::default();
        apply(&site, "p", "ntp", &off, Others::Kept).await.unwrap();
    }

    #[test]
    fn only_names_and_addresses_are_servers() {
        for bad in ["", "a b", "a\nmakestep", "a;b"] {
            assert!(!is_server(bad), "{bad:?}");
        }
        assert!(is_server("2001:db8::1") && is_server("0.pool.ntp.example"));
    }
}
