//! Shared code of `refit abort`, `retry`, `renew-certs`, `pause`, `resume` and `approve`: sends a request to objects one at a time and
//! reports each result.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
    core::NamespaceResourceScope,
};
use refit_kinds::keys;
use refit_runtime::apply::is_conflict;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    client::{Cluster, attempt_on},
    global::GlobalArgs,
    printer::{Format, Printer},
    target::Target,
};

/// How often a write is repeated if the object changed in the meantime.
const ATTEMPTS: u32 = 5;

/// Flags of commands that ask something of objects.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// cluster/NAME, kcp/NAME, md/NAME, ms/NAME or machine/NAME.
    #[arg(value_name = "KIND/NAME")]
    pub(crate) target: Target,
    /// Report what would happen, without writing anything.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl AskArgs {
    /// Returns the printer for the report.
    pub(crate) fn printer(&self, global: &GlobalArgs) -> Printer {
        Printer::new(self.output, global)
    }
}

/// The decision about one object.
pub(crate) struct Decision<R> {
    /// The row of the report.
    pub(crate) row: R,
    /// The merge patch that sends the request; `None` if nothing has to be written.
    pub(crate) patch: Option<Value>,
}

/// Decides about an object and writes the request; decides again if the object changed in the
/// meantime. Returns the row of the decision that was written; `None` if there is nothing to report
/// or the object is gone.
pub(crate) async fn ask<K, R>(
    cluster: &Cluster,
    object: &K,
    dry_run: bool,
    decide: impl Fn(&K) -> Option<Decision<R>>,
) -> anyhow::Result<Option<R>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let api: Api<K> = cluster.here();
    let name = object.name_any();
    let mut newer = None;
    for _ in 0..ATTEMPTS {
        let object = newer.as_ref().unwrap_or(object);
        let Some(Decision { row, patch }) = decide(object) else {
            return Ok(None);
        };
        let Some(mut patch) = patch.filter(|_| !dry_run) else {
            return Ok(Some(row));
        };
        patch["metadata"]["resourceVersion"] = object.resource_version().into();
        let params =
            PatchParams { field_manager: Some(keys::MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch(&name, &params, &Patch::Merge(patch)).await {
            Ok(_) => return Ok(Some(row)),
            Err(error) if is_conflict(&error) => match cluster.get::<K>(&name).await? {
                Some(now) => newer = Some(now),
                None => return Ok(None),
            },
            Err(error) => return Err(cluster.explain(error, &attempt_on::<K>("patch", &name))),
        }
    }
    anyhow::bail!("{} {name} keeps changing; try again", K::kind(&()))
}

/// Prints the rows as one JSON document or one line each; prints `empty` if there are no rows.
pub(crate) fn report<R: Serialize>(
    printer: Printer,
    rows: &[R],
    empty: &str,
    line: impl Fn(&R) -> String,
) -> anyhow::Result<()> {
    if printer.is_json() {
        printer.result(&serde_json::to_string_pretty(rows)?)?;
        return Ok(());
    }
    if rows.is_empty() {
        printer.result(empty)?;
    }
    for row in rows {
        printer.result(&line(row))?;
    }
    Ok(())
}
