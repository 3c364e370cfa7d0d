//! Trident's status of a host, and what it means for the wanted image
//! (`docs/facts/trident.md#host-status` and `docs/facts/trident.md#reading-the-situation`).

use refit_kinds::refit::OsImageArgs;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::host::work::WorkError;

/// Servicing state of Trident, in its own spelling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Servicing {
    /// The host was not installed by Trident.
    #[default]
    NotProvisioned,
    /// An installation is staged.
    CleanInstallStaged,
    /// An installation is booted next.
    CleanInstallFinalized,
    /// A change without a reboot is staged.
    RuntimeUpdateStaged,
    /// An image is written to the inactive volumes.
    AbUpdateStaged,
    /// That image is booted next.
    AbUpdateFinalized,
    /// The new image failed its health checks; the old image is booted next.
    AbUpdateHealthCheckFailed,
    /// A rollback is staged.
    ManualRollbackAbStaged,
    /// The previous image is booted next.
    ManualRollbackAbFinalized,
    /// A rollback without a reboot is staged.
    ManualRollbackRuntimeStaged,
    /// No operation is in progress.
    Provisioned,
}

/// Trident's status of a host, limited to the fields that Refit uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostStatus {
    /// State of servicing.
    #[serde(default)]
    pub servicing_state: Servicing,
    /// The configuration. After staging it is the new configuration, not the running one.
    #[serde(default)]
    pub spec: Value,
    /// The previous configuration during an update.
    #[serde(default)]
    pub spec_old: Value,
    /// Why the last operation failed.
    #[serde(default)]
    pub last_error: Option<Value>,
    /// The active volume: `volume-a` or `volume-b`.
    #[serde(default)]
    pub ab_active_volume: Option<String>,
    /// Version of Trident.
    #[serde(default)]
    pub trident_version: Option<String>,
}

impl HostStatus {
    /// Parses the output of `trident get status`.
    pub fn parse(text: &str) -> Result<Self, WorkError> {
        serde_saphyr::from_str(text).map_err(|error| {
            WorkError::needs_person(format!(
                "cannot parse the output of `trident get status`: {error}; Trident may be too new"
            ))
        })
    }

    /// sha384 of the image in the configuration.
    pub fn image(&self) -> Option<&str> {
        self.spec.get("image")?.get("sha384")?.as_str()
    }

    /// A short form of the last error.
    pub fn error(&self) -> Option<String> {
        let error = self.last_error.as_ref().filter(|error| !error.is_null())?;
        let word = |name: &str| error.get(name).and_then(Value::as_str);
        let parts: Vec<&str> =
            ["category", "error", "message"].into_iter().filter_map(word).collect();
        Some(if parts.is_empty() { error.to_string() } else { parts.join(": ") })
    }
}

/// The state before the image was staged. It is stored with the plan's snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Before {
    /// The active volume at that time.
    #[serde(default)]
    pub active_volume: Option<String>,
    /// sha384 of the running image at that time.
    #[serde(default)]
    pub image: Option<String>,
    /// ID of the boot in which the image was finalized; empty until then.
    #[serde(default)]
    pub finalized_in: String,
}

/// The progress of a host's update to an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Situation {
    /// Trident does not manage the host.
    NotManaged,
    /// No operation is in progress, and the host has another image.
    NeedsUpdate,
    /// The image is staged.
    Staged,
    /// Another image is staged.
    OtherStaged,
    /// The image is booted next, but the host has not been rebooted.
    AwaitsBoot,
    /// The host has booted the image, which is not committed yet.
    AwaitsCommit,
    /// The new image failed, and the old image is booted next.
    RollingBack,
    /// The image is running and committed.
    Done,
    /// The old image runs again.
    RolledBack {
        /// The error of the update.
        error: String,
    },
    /// An operation that Refit did not start is in progress.
    Busy {
        /// State of the other operation.
        what: Servicing,
    },
}

/// Determines the progress of a host's update. Trident's state alone does not distinguish a host
/// that waits for its boot from one that waits for its commit, nor a rollback from an update that
/// never started. The state before the update does.
pub(crate) fn situation(
    status: &HostStatus,
    wanted: &OsImageArgs,
    before: Option<&Before>,
    boot_id: &str,
) -> Situation {
    let is_wanted = status.image().is_some_and(|image| image.eq_ignore_ascii_case(&wanted.sha384));
    match status.servicing_state {
        Servicing::NotProvisioned => Situation::NotManaged,
        Servicing::AbUpdateStaged if is_wanted => Situation::Staged,
        Servicing::AbUpdateStaged => Situation::OtherStaged,
        Servicing::AbUpdateFinalized if !is_wanted => {
            Situation::Busy { what: status.servicing_state }
        }
        Servicing::AbUpdateFinalized => {
            let booted = before.is_some_and(|before| {
                !before.finalized_in.is_empty() && before.finalized_in != boot_id
            });
            if booted { Situation::AwaitsCommit } else { Situation::AwaitsBoot }
        }
        Servicing::AbUpdateHealthCheckFailed => Situation::RollingBack,
        Servicing::Provisioned => provisioned(status, is_wanted, before),
        what @ (Servicing::CleanInstallStaged
        | Servicing::CleanInstallFinalized
        | Servicing::RuntimeUpdateStaged
        | Servicing::ManualRollbackAbStaged
        | Servicing::ManualRollbackAbFinalized
        | Servicing::ManualRollbackRuntimeStaged) => Situation::Busy { what },
    }
}

fn provisioned(status: &HostStatus, is_wanted: bool, before: Option<&Before>) -> Situation {
    let error = status.error();
    let finalized = before.is_some_and(|before| !before.finalized_in.is_empty());
    if is_wanted {
        let flipped = before.is_none_or(|before| {
            !finalized
                || before.active_volume.is_none()
                || before.active_volume != status.ab_active_volume
        });
        return if flipped {
            Situation::Done
        } else {
            Situation::RolledBack {
                error: error.unwrap_or_else(|| "the same volume runs as before".to_owned()),
            }
        };
    }
    match (finalized, error) {
        (true, error) => Situation::RolledBack {
            error: error.unwrap_or_else(|| "the host booted the previous image".to_owned()),
        },
        (false, _) => Situation::NeedsUpdate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> OsImageArgs {
        OsImageArgs {
            url: "https://images.example/new.cosi".to_owned(),
            sha384: "bb".repeat(48),
            ..OsImageArgs::default()
        }
    }

    fn status(state: &str, image: &str, volume: &str, error: &str) -> HostStatus {
        HostStatus::parse(&format!(
            "servicingState: {state}\nspec: {{image: {{url: x, sha384: '{}'}}}}\n\
             abActiveVolume: {volume}\nlastError: {error}\nsomethingNew: [1]\n",
            image.repeat(48)
        ))
        .unwrap()
    }

    fn before(finalized_in: &str) -> Before {
        Before {
            active_volume: Some("volume-a".to_owned()),
            image: Some("aa".repeat(48)),
            finalized_in: finalized_in.to_owned(),
        }
    }

    #[test]
    fn each_trident_state_maps_to_one_situation() {
        let rolled_back = |error: &str| Situation::RolledBack { error: error.to_owned() };
        let busy = |what| Situation::Busy { what };
        let error = "{category: servicing, error: AbUpdateRebootCheck, message: booted old root}";
        for (state, image, volume, error, finalized_in, expected) in [
            ("provisioned", "aa", "volume-a", "null", "", Situation::NeedsUpdate),
            // An error of an earlier operation does not mean that this update was rolled back.
            ("provisioned", "aa", "volume-a", error, "", Situation::NeedsUpdate),
            ("ab-update-staged", "bb", "volume-a", "null", "", Situation::Staged),
            ("ab-update-staged", "cc", "volume-a", "null", "", Situation::OtherStaged),
            ("ab-update-finalized", "bb", "volume-a", "null", "boot-2", Situation::AwaitsBoot),
            ("ab-update-finalized", "bb", "volume-a", "null", "boot-1", Situation::AwaitsCommit),
            (
                "ab-update-finalized",
                "cc",
                "volume-a",
                "null",
                "",
                busy(Servicing::AbUpdateFinalized),
            ),
            (
                "ab-update-health-check-failed",
                "bb",
                "volume-b",
                error,
                "boot-1",
                Situation::RollingBack,
            ),
            ("provisioned", "bb", "volume-b", "null", "boot-1", Situation::Done),
            (
                "provisioned",
                "aa",
                "volume-a",
                error,
                "boot-1",
                rolled_back("servicing: AbUpdateRebootCheck: booted old root"),
            ),
            (
                "provisioned",
                "aa",
                "volume-a",
                "null",
                "boot-1",
                rolled_back("the host booted the previous image"),
            ),
            ("not-provisioned", "aa", "volume-a", "null", "", Situation::NotManaged),
            (
                "manual-rollback-ab-staged",
                "aa",
                "volume-a",
                "null",
                "",
                busy(Servicing::ManualRollbackAbStaged),
            ),
        ] {
            let status = status(state, image, volume, error);
            let found = situation(&status, &wanted(), Some(&before(finalized_in)), "boot-2");
            assert_eq!(found, expected, "{state} {image} {finalized_in}");
        }
    }

    #[test]
    fn a_host_with_the_image_is_done_without_a_previous_plan() {
        let status = status("provisioned", "BB", "volume-a", "null");
        assert_eq!(situation(&status, &wanted(), None, "boot-1"), Situation::Done);
    }

    #[test]
    fn an_unknown_servicing_state_needs_an_operator() {
        let error = HostStatus::parse("servicingState: teleported\n").unwrap_err();
        assert!(error.message.contains("too new"), "{error}");
    }
}
