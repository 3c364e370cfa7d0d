//! Time servers that take the place of all others in the configuration of a host (`docs/facts/hosts.md#time-servers`).
//!
//! | daemon | the servers | all others |
//! |---|---|---|
//! | chrony | a block in its main file, which every version of chrony reads | commented out, in the main file and in the files below `/etc` that it includes |
//! | systemd-timesyncd | a drop-in, which resets the lists before it | commented out in the drop-ins of `/etc` that are read after it |
//!
//! Servers of DHCP (below `/run`) and hardware clocks (`refclock`) stay.

use std::{fs, path::Path};

use super::Daemon;
use crate::host::{
    Site,
    files::{
        atomic::{self, Access},
        keep,
    },
    work::WorkError,
};

/// Directives of chrony that name a source of time. Their case does not matter.
const SOURCES: [&str; 3] = ["server", "pool", "peer"];
/// Settings of timesyncd that list servers.
const LISTS: [&str; 2] = ["NTP", "FallbackNTP"];
const BEGIN: &str = "# Servers of refit-agent, in place of all others:";
const END: &str = "# End of the servers of refit-agent.";

/// Writes the servers and disables all others. Returns whether a file changed.
pub(super) fn write(
    site: &Site,
    plan: &str,
    step: &str,
    daemon: &Daemon,
    servers: &[String],
) -> Result<bool, WorkError> {
    let changes = changes(site, daemon, servers)?;
    for (path, text) in &changes {
        keep::keep(site, plan, step, path)?;
        let on_host = site.path(path);
        atomic::replace(&on_host, text.as_bytes(), Access::like(&on_host, 0o644))?;
        site.log(&format!("set the time servers in {path}"));
    }
    Ok(!changes.is_empty())
}

/// The files that must change, with their new text.
pub(super) fn changes(
    site: &Site,
    daemon: &Daemon,
    servers: &[String],
) -> Result<Vec<(String, String)>, WorkError> {
    let mut wanted = Vec::new();
    if daemon.is_timesyncd() {
        let list = servers.join(" ");
        // An empty value resets a list, and an empty fallback disables the one that is built in.
        let text = format!("# Written by refit-agent.\n[Time]\nNTP=\nNTP={list}\nFallbackNTP=\n");
        wanted.push((daemon.file.to_owned(), text));
        for path in later_drop_ins(site, daemon.file) {
            let text = disabled(&read(site, &path)?, is_list);
            wanted.push((path, text));
        }
    } else {
        let main = read(site, daemon.sign)?;
        for path in included(site, &main).into_iter().filter(|path| path != daemon.sign) {
            let text = disabled(&read(site, &path)?, is_source);
            wanted.push((path, text));
        }
        wanted.push((daemon.sign.to_owned(), with_block(&main, servers)));
    }
    let is_other = |(path, text): &(String, String)| read(site, path).map(|now| now != *text);
    let checked = wanted.into_iter().map(|file| Ok(is_other(&file)?.then_some(file)));
    checked.filter_map(Result::transpose).collect()
}

/// The text of a file of the host; empty if the file does not exist.
fn read(site: &Site, path: &str) -> Result<String, WorkError> {
    let text = atomic::read(&site.path(path))?.map_or_else(Vec::new, |(text, _)| text);
    String::from_utf8(text).map_err(|_| {
        WorkError::needs_person(format!(
            "{path} is not UTF-8, so its time servers cannot be replaced; correct it"
        ))
    })
}

fn is_source(line: &str) -> bool {
    let directive = line.split_whitespace().next().unwrap_or_default();
    SOURCES.iter().any(|source| directive.eq_ignore_ascii_case(source))
}

fn is_list(line: &str) -> bool {
    line.split_once('=').is_some_and(|(name, _)| LISTS.contains(&name.trim()))
}

/// The text with some lines commented out, and with the lines that continue them.
fn disabled(text: &str, is_disabled: fn(&str) -> bool) -> String {
    let mut continues = false;
    let lines = text.split_inclusive('\n').map(|line| {
        let is_off = continues || is_disabled(line);
        continues = is_off && line.trim_end().ends_with('\\');
        [if is_off { "# " } else { "" }, line].concat()
    });
    lines.collect()
}

/// The main file of chrony with the block of the servers at its end, and all others commented out.
fn with_block(main: &str, servers: &[String]) -> String {
    let mut is_inside = false;
    let mut lines: Vec<String> = Vec::new();
    for line in main.lines() {
        if line == BEGIN || line == END {
            is_inside = line == BEGIN;
        } else if !is_source(line) {
            lines.push(line.to_owned());
        } else if !is_inside {
            lines.push(format!("# {line}"));
        }
    }
    lines.push(BEGIN.to_owned());
    lines.extend(servers.iter().map(|server| format!("server {server} iburst")));
    lines.push(END.to_owned());
    lines.join("\n") + "\n"
}

/// The files below `/etc` that chrony's main file includes.
fn included(site: &Site, main: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in main.lines() {
        let mut words = line.split_whitespace();
        let directive = words.next().unwrap_or_default().to_ascii_lowercase();
        for word in words {
            match &*directive {
                "confdir" => found.extend(files(site, word, "*.conf")),
                "sourcedir" => found.extend(files(site, word, "*.sources")),
                "include" => {
                    let (directory, name) = word.rsplit_once('/').unwrap_or(("", word));
                    found.extend(files(site, directory, name));
                }
                _ => {}
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The files of a directory below `/etc` whose names match a pattern with at most one `*`.
fn files(site: &Site, directory: &str, pattern: &str) -> Vec<String> {
    let directory = directory.trim_end_matches('/');
    if !Path::new(directory).starts_with("/etc") {
        return Vec::new();
    }
    let matches = |name: &str| match pattern.split_once('*') {
        None => name == pattern,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    };
    let entries = fs::read_dir(site.path(directory)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| matches(name)).map(|name| format!("{directory}/{name}")).collect()
}

/// The drop-ins of `/etc` that timesyncd reads after this one: it sorts them by their names.
fn later_drop_ins(site: &Site, own: &str) -> Vec<String> {
    let (directory, _) = own.rsplit_once('/').unwrap_or_default();
    let mut found = files(site, directory, "*.conf");
    found.retain(|path| path.as_str() > own);
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::NtpArgs;

    use super::*;
    use crate::host::{
        Evidence, Program,
        ntp::{self, Others},
        scripted::ScriptedHost,
    };

    fn host(files: &[(&str, &str)]) -> ScriptedHost {
        let directories = files.iter().filter_map(|(path, _)| Some(path.rsplit_once('/')?.0));
        let mut host = ScriptedHost::with_directories(&directories.collect::<Vec<_>>());
        host.script(Program::Systemctl, "exit 0");
        for (path, text) in files {
            host.write(path, text);
        }
        host
    }

    fn args(servers: &[&str]) -> NtpArgs {
        let servers = servers.iter().map(|&server| server.to_owned()).collect();
        NtpArgs { enabled: true, servers }
    }

    /// Replaces the servers, twice, and checks the files afterwards and after a rollback.
    async fn replaces(before: &[(&str, &str)], after: &[(&str, &str)]) {
        let host = host(before);
        let args = args(&["ntp.example", "10.0.0.1"]);
        let site = &host.site;
        assert_ne!(ntp::check(site, &args, Others::Disabled), Evidence::Done);
        for _ in 0..2 {
            ntp::apply(site, "p", "ntp-replace", &args, Others::Disabled).await.unwrap();
            assert_eq!(ntp::check(site, &args, Others::Disabled), Evidence::Done);
            for (path, text) in after {
                assert_eq!(site.read(path), *text, "{path}");
            }
        }
        keep::put_back(site, "p", "ntp-replace").unwrap();
        for (path, text) in before {
            assert_eq!(site.read(path), *text, "{path}");
        }
    }

    #[tokio::test]
    async fn chronys_main_file_gets_the_servers_and_no_other_file_keeps_one() {
        let main = "pool old.example iburst\nSERVER a\n peer b\nrefclock PHC /dev/ptp0\n\
                    confdir /etc/chrony/conf.d\nsourcedir /run/chrony-dhcp /etc/chrony/sources.d\n\
                    include /etc/chrony/more-*.conf\n#pool c\nmakestep 1 3";
        let changed = main.replace("pool old", "# pool old").replace("SERVER", "# SERVER");
        let changed = changed.replace(" peer", "#  peer");
        let block = format!("{BEGIN}\nserver ntp.example iburst\nserver 10.0.0.1 iburst\n{END}\n");
        replaces(
            &[
                ("/etc/chrony/chrony.conf", main),
                ("/etc/chrony/conf.d/x.conf", "server x\nallow\n"),
                ("/etc/chrony/conf.d/x.txt", "server x\n"),
                ("/etc/chrony/sources.d/y.sources", "pool y iburst"),
                ("/etc/chrony/more-1.conf", "peer z\n"),
                ("/etc/chrony/other.conf", "peer z\n"),
                ("/run/chrony-dhcp/eth0.sources", "server dhcp iburst\n"),
            ],
            &[
                ("/etc/chrony/chrony.conf", &format!("{changed}\n{block}")),
                ("/etc/chrony/conf.d/x.conf", "# server x\nallow\n"),
                ("/etc/chrony/conf.d/x.txt", "server x\n"),
                ("/etc/chrony/sources.d/y.sources", "# pool y iburst"),
                ("/etc/chrony/more-1.conf", "# peer z\n"),
                ("/etc/chrony/other.conf", "peer z\n"),
                ("/run/chrony-dhcp/eth0.sources", "server dhcp iburst\n"),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn servers_of_an_earlier_plan_are_replaced_where_they_are() {
        let host = host(&[("/etc/chrony.conf", "pool old iburst\n")]);
        for servers in [&["a"][..], &["b", "c"]] {
            let args = args(servers);
            ntp::apply(&host.site, "p", "s", &args, Others::Disabled).await.unwrap();
        }
        let text = format!("# pool old iburst\n{BEGIN}\nserver b iburst\nserver c iburst\n{END}\n");
        assert_eq!(host.site.read("/etc/chrony.conf"), text);
        assert!(host.log().contains("restart chronyd.service"), "{}", host.log());
    }

    #[tokio::test]
    async fn timesyncds_lists_are_reset_and_later_drop_ins_disabled() {
        let directory = "/etc/systemd/timesyncd.conf.d";
        let (early, late) = (format!("{directory}/cloud-init.conf"), format!("{directory}/z.conf"));
        let own = format!("{directory}/refit.conf");
        let text = "[Time]\nNTP = a \\\n  b\nRootDistanceMaxSec=5\nFallbackNTP=c\n";
        replaces(
            &[
                ("/etc/systemd/timesyncd.conf", "[Time]\nNTP=main\n"),
                (&early, "[Time]\nNTP=old \n"),
                (&late, text),
            ],
            &[
                ("/etc/systemd/timesyncd.conf", "[Time]\nNTP=main\n"),
                (&early, "[Time]\nNTP=old \n"),
                (&late, "[Time]\n# NTP = a \\\n#   b\nRootDistanceMaxSec=5\n# FallbackNTP=c\n"),
                (
                    &own,
                    "# Written by refit-agent.\n[Time]\nNTP=\nNTP=ntp.example 10.0.0.1\nFallbackNTP=\n",
                ),
            ],
        )
        .await;
    }

    #[tokio::test]
    async fn a_file_in_another_encoding_is_not_replaced() {
        let host = host(&[("/etc/chrony.conf", "")]);
        host.write("/etc/chrony.conf", b"# \xe4\nserver a\n");
        let args = args(&["b"]);
        let error = ntp::apply(&host.site, "p", "s", &args, Others::Disabled).await.unwrap_err();
        assert!(error.message.contains("/etc/chrony.conf is not UTF-8"), "{error}");
        assert_ne!(ntp::check(&host.site, &args, Others::Disabled), Evidence::Done);
    }
}
