//! Upgrades by annotation, as the simulated user requests them.

use refit_kinds::{
    canonical::Keys,
    json::{annotation, kind, name},
};
use serde_json::{Value, json};

use super::{World, collection};
use crate::{
    direct::{Call, Direct, DirectError, USER},
    script::look::owners,
};

impl World {
    /// Requests an option of all owners of Machines of a kind: a control plane's, or `MachineDeployment`.
    pub(crate) async fn annotate_owners(
        &self,
        of_kind: &str,
        keys: Keys,
        option: &str,
    ) -> Result<(), DirectError> {
        let api = Direct::new(self.management().clone(), USER);
        for owner in owners(self).iter().filter(|owner| kind(owner) == of_kind) {
            let Some(collection) = collection(self.management(), owner) else { continue };
            let body = json!({"metadata": {"annotations": {keys.upgrade_to: option}}});
            api.send(Call::merge(format!("{collection}/{}", name(owner)), body)).await?;
        }
        Ok(())
    }

    /// Whether all owners of a kind show that their Machines have an option.
    pub(crate) fn owners_show(&self, of_kind: &str, keys: Keys, option: &str) -> bool {
        let shows = |owner: &Value| {
            annotation(owner, keys.release) == Some(option)
                && annotation(owner, keys.status) == Some("done")
                && annotation(owner, keys.upgrade_to).is_none()
        };
        owners(self).iter().filter(|owner| kind(owner) == of_kind).all(shows)
    }
}
