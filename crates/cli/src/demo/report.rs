//! Classifies each machine by comparing reads before and after the run.

use std::collections::{BTreeMap, BTreeSet};

use refit_kinds::version::StatedVersion;
use serde::Serialize;

/// The identity of a machine, as read by an independent client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    /// Name of the Machine.
    pub(crate) machine: String,
    /// uid of the Machine.
    pub(crate) uid: String,
    /// Provider ID of the Machine.
    #[serde(rename = "providerID")]
    pub(crate) provider_id: String,
    /// Name of the Node.
    pub(crate) node_name: String,
    /// Boot id that the Node reports.
    #[serde(rename = "bootID")]
    pub(crate) boot_id: String,
    /// Version of the running kubelet.
    pub(crate) version: StatedVersion,
    /// `Kind/name` of the group that owns the machine.
    #[serde(skip)]
    pub(crate) group: String,
}

/// What a group's own strategy allows Cluster API to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRule {
    /// `Kind/name`.
    pub(crate) group: String,
    /// Number of machines that the strategy replaces.
    pub(crate) replaces: i64,
    /// maxSurge of the strategy as written in the object, for display.
    pub(crate) max_surge: String,
}

/// The work done on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Number of steps that succeeded.
    pub(crate) steps: usize,
    /// Seconds from the first step to the last.
    pub(crate) seconds: i64,
    /// Seconds of the steps that ran on the host.
    pub(crate) host_seconds: i64,
}

/// The result of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The same machine, updated in place.
    Same,
    /// Replaced by Cluster API because of the group's maxSurge.
    Surge(String),
    /// Replaced although no strategy asks for it.
    Unasked,
}

impl Verdict {
    /// Returns the text for the result table.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Same => "yes".to_owned(),
            Self::Surge(max_surge) => format!("replaced (maxSurge {max_surge})"),
            Self::Unasked => "REPLACED".to_owned(),
        }
    }
}

/// One machine of the report.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Identity before the run.
    pub(crate) before: Identity,
    /// Identity after the run, or that of the machine that replaced it.
    pub(crate) after: Option<Identity>,
    /// The classification.
    pub(crate) verdict: Verdict,
    /// The work done on it.
    pub(crate) work: Work,
}

/// Pairs the machines before the run with those after it.
///
/// A machine is the same if its Machine uid, providerID and Node name are unchanged. A missing
/// machine counts as replaced by its group's maxSurge as long as the strategy accounts for it;
/// every other replacement is unexpected.
pub(crate) fn rows(
    before: &[Identity],
    after: &[Identity],
    rules: &[GroupRule],
    work: &BTreeMap<String, Work>,
) -> Vec<Row> {
    let old: BTreeSet<&str> = before.iter().map(|m| m.machine.as_str()).collect();
    let mut newcomers: BTreeMap<&str, Vec<&Identity>> = BTreeMap::new();
    for machine in after.iter().rev().filter(|m| !old.contains(m.machine.as_str())) {
        newcomers.entry(&machine.group).or_default().push(machine);
    }
    let mut budget: BTreeMap<&str, i64> =
        rules.iter().map(|rule| (rule.group.as_str(), rule.replaces)).collect();
    before
        .iter()
        .map(|was| {
            let namesake = after.iter().find(|is| is.machine == was.machine);
            let (is, verdict) = match namesake {
                Some(is) if same(was, is) => (Some(is), Verdict::Same),
                Some(is) => (Some(is), Verdict::Unasked),
                None => {
                    let is = newcomers.get_mut(was.group.as_str()).and_then(Vec::pop);
                    (is, verdict_of_missing(was, rules, &mut budget))
                }
            };
            let name = is.map_or(&was.machine, |is| &is.machine);
            let work = work.get(name).copied().unwrap_or_default();
            Row { before: was.clone(), after: is.cloned(), verdict, work }
        })
        .collect()
}

fn same(was: &Identity, is: &Identity) -> bool {
    was.uid == is.uid && was.provider_id == is.provider_id && was.node_name == is.node_name
}

fn verdict_of_missing(
    was: &Identity,
    rules: &[GroupRule],
    budget: &mut BTreeMap<&str, i64>,
) -> Verdict {
    let rule = rules.iter().find(|rule| rule.group == was.group);
    match (rule, budget.get_mut(was.group.as_str())) {
        (Some(rule), Some(left)) if *left > 0 => {
            *left -= 1;
            Verdict::Surge(rule.max_surge.clone())
        }
        _ => Verdict::Unasked,
    }
}

/// One machine of the JSON result.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MachineJson {
    machine: String,
    uid: String,
    #[serde(rename = "providerID")]
    provider_id: String,
    node_name: String,
    #[serde(rename = "bootIDs")]
    boot_ids: Vec<String>,
    versions: Versions,
    steps: usize,
    seconds: i64,
    same_machine: bool,
    verdict: String,
    before: Identity,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Identity>,
}

#[derive(Clone, Debug, Serialize)]
struct Versions {
    before: StatedVersion,
    after: StatedVersion,
}

impl From<&Row> for MachineJson {
    fn from(row: &Row) -> Self {
        let is = row.after.clone().unwrap_or_default();
        let mut boot_ids = vec![row.before.boot_id.clone()];
        if row.verdict == Verdict::Same && is.boot_id != row.before.boot_id {
            boot_ids.push(is.boot_id.clone());
        }
        Self {
            machine: row.before.machine.clone(),
            uid: row.before.uid.clone(),
            provider_id: row.before.provider_id.clone(),
            node_name: row.before.node_name.clone(),
            boot_ids,
            versions: Versions { before: row.before.version.clone(), after: is.version },
            steps: row.work.steps,
            seconds: row.work.seconds,
            same_machine: row.verdict == Verdict::Same,
            verdict: row.verdict.text(),
            before: row.before.clone(),
            after: row.after.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, uid: &str) -> Identity {
        Identity {
            machine: name.into(),
            uid: uid.into(),
            provider_id: format!("sandbox://{uid}"),
            node_name: name.into(),
            boot_id: "b".into(),
            version: "v1.34.2".into(),
            group: "MachineDeployment/md".into(),
        }
    }

    fn rule(replaces: i64) -> GroupRule {
        GroupRule { group: "MachineDeployment/md".into(), replaces, max_surge: "1".into() }
    }

    fn verdicts(before: &[Identity], after: &[Identity], replaces: i64) -> Vec<String> {
        rows(before, after, &[rule(replaces)], &BTreeMap::new())
            .iter()
            .map(|row| row.verdict.text())
            .collect()
    }

    #[test]
    fn a_machine_that_kept_its_identity_is_the_same() {
        let before = [machine("m1", "a")];
        assert_eq!(verdicts(&before, &before, 0), ["yes"]);
    }

    #[test]
    fn a_changed_uid_provider_id_or_node_is_a_replacement() {
        let before = [machine("m1", "a")];
        let changes: [fn(&mut Identity); 3] = [
            |m| m.uid = "b".into(),
            |m| m.provider_id = "other".into(),
            |m| m.node_name = "other".into(),
        ];
        for change in changes {
            let mut after = before.clone();
            change(&mut after[0]);
            assert_eq!(verdicts(&before, &after, 1), ["REPLACED"]);
        }
    }

    #[test]
    fn a_reboot_is_not_a_replacement() {
        let before = [machine("m1", "a")];
        let mut after = before.clone();
        after[0].boot_id = "c".into();
        assert_eq!(verdicts(&before, &after, 0), ["yes"]);
        let row = &rows(&before, &after, &[], &BTreeMap::new())[0];
        assert_eq!(MachineJson::from(row).boot_ids, ["b", "c"]);
    }

    #[test]
    fn the_strategy_accounts_for_its_own_replacements() {
        let before = [machine("m1", "a"), machine("m2", "b")];
        let after = [machine("m3", "c"), machine("m4", "d")];
        assert_eq!(verdicts(&before, &after, 1), ["replaced (maxSurge 1)", "REPLACED"]);
        assert_eq!(verdicts(&before, &after, 0), ["REPLACED", "REPLACED"]);
    }

    #[test]
    fn a_replaced_machine_is_paired_with_the_one_in_its_place() {
        let before = [machine("m1", "a"), machine("m2", "b")];
        let after = [machine("m2", "b"), machine("m9", "z")];
        let rows = rows(&before, &after, &[rule(1)], &BTreeMap::new());
        assert_eq!(rows[0].after.as_ref().unwrap().machine, "m9");
        assert_eq!(rows[1].verdict, Verdict::Same);
    }

    #[test]
    fn the_json_shows_whether_a_machine_is_the_same() {
        let before = [machine("m1", "a")];
        let row = &rows(&before, &[], &[], &BTreeMap::new())[0];
        let json = serde_json::to_value(MachineJson::from(row)).unwrap();
        assert_eq!(json["sameMachine"], false);
        assert_eq!(json["providerID"], "sandbox://a");
        assert_eq!(json["versions"]["before"], "v1.34.2");
    }
}
