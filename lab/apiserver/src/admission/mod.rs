//! Admission of writes by ValidatingAdmissionPolicies.
//!
//! | module | purpose |
//! |---|---|
//! | `policy` | a policy with its compiled expressions |
//! | `matching` | which requests a policy and a binding are for |
//! | `cel` | what expressions see, and how they are evaluated |
//!
//! A policy sees the requests of callers, not what follows from them, such as garbage collection. Of a creation with
//! `generateName`, it sees the generated name, as in the real server.
//!
//! Not supported:
//! - `authorizer` and `auditAnnotations`.
//! - Scales and evictions are not checked.
//! - Type checks: an expression is only parsed when its policy is written. Where it names a variable, field or function
//!   that does not exist, or compares values of different types, it fails when it is evaluated. `status.typeChecking`
//!   stays empty.
//! - Bindings are not validated.
//! - Conversion: with `matchPolicy: Equivalent`, a rule for another version of a resource matches, but the expressions see
//!   the objects and the `request` in the version of the caller.
//! - Warnings of a write that is denied: its response has the first denial only.
//! - Limits on the cost of expressions.

mod cel;
mod matching;
mod policy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{
    ParamRef, ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
};
use serde_json::Value;

use crate::auth::Identity;
use crate::error::ApiError;
use crate::resources::{ADMISSION, Resource};
use crate::selector::LabelSelector;
use crate::store::{Store, key_of, range};

use self::cel::Inputs;
use self::matching::constraints_fit;
use self::policy::{Denial, Policy};

pub(crate) use self::policy::validate;

pub(crate) const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
const BINDINGS: &str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A write that a caller requests.
pub(crate) struct WriteRequest<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    /// `status`, or empty.
    pub(crate) subresource: &'a str,
    pub(crate) operation: Operation,
    /// The object as it would be; `None` for a deletion.
    pub(crate) object: Option<&'a Value>,
    /// The object as it is; `None` for a creation.
    pub(crate) old: Option<&'a Value>,
    pub(crate) dry_run: bool,
}

/// Compiled policies, by name, each with the revision that it was compiled from.
pub(crate) type Compiled = BTreeMap<Arc<str>, (u64, Arc<Policy>)>;

impl Store {
    /// Refuses a write that a policy denies; returns warnings.
    pub(crate) fn check_policies(
        &mut self,
        write: &WriteRequest<'_>,
    ) -> Result<Vec<String>, ApiError> {
        let is_exempt = &*write.resource.group == ADMISSION || write.subresource == "scale";
        let bindings = self.table(BINDINGS).filter(|table| !table.is_empty()).cloned();
        let (Some(requester), Some(bindings), false) =
            (self.requester.clone(), bindings, is_exempt)
        else {
            return Ok(vec![]);
        };
        let mut warnings = Vec::new();
        for (key, entry) in bindings.iter() {
            let Ok(binding) =
                serde_json::from_slice::<ValidatingAdmissionPolicyBinding>(&entry.bytes)
            else {
                continue;
            };
            let spec = binding.spec.unwrap_or_default();
            let Some((name, policy)) = self.policy(spec.policy_name.as_deref()) else {
                continue;
            };
            let names = (&*name, crate::store::name_of(key));
            // The actions of a binding do not apply where it cannot be used.
            let denials = self
                .denials(&policy, &spec, write, &requester)
                .map_err(|denial| denial.into_error(write, names))?;
            let has_action =
                |action: &str| spec.validation_actions.iter().flatten().any(|one| one == action);
            for denial in denials {
                if has_action("Deny") {
                    return Err(denial.into_error(write, names));
                }
                if has_action("Warn") {
                    warnings.push(denial.into_warning(names));
                }
            }
        }
        Ok(warnings)
    }

    fn policy(&mut self, name: Option<&str>) -> Option<(Arc<str>, Arc<Policy>)> {
        let name: Arc<str> = name?.into();
        let entry = self.get(POLICIES, &key_of("", &name))?;
        if let Some((revision, policy)) = self.policies.get(&name)
            && *revision == entry.revision
        {
            return Some((name, policy.clone()));
        }
        // What does not compile was refused when it was written.
        let policy = Arc::new(Policy::compile(&entry.value()).ok()?);
        self.policies.insert(name.clone(), (entry.revision, policy.clone()));
        Some((name, policy))
    }

    /// Why a policy denies a request, as one of its bindings applies it: a denial for each validation that is
    /// violated. A binding that cannot be used is an error, unless the policy ignores failures.
    fn denials(
        &self,
        policy: &Policy,
        binding: &ValidatingAdmissionPolicyBindingSpec,
        write: &WriteRequest<'_>,
        requester: &Identity,
    ) -> Result<Vec<Denial>, Denial> {
        let home = self.get("namespaces", &key_of("", write.namespace)).map(|entry| entry.value());
        let is_served = |group: &str, version: &str, plural: &str| {
            self.registry.find(group, version, plural).is_some()
        };
        let is_matched =
            |constraints: &_| constraints_fit(constraints, write, home.as_ref(), is_served);
        if !is_matched(&policy.constraints)
            || !binding.match_resources.as_ref().is_none_or(is_matched)
        {
            return Ok(vec![]);
        }
        let mut inputs = Inputs::new(write, requester, home.as_ref());
        let params = match (&policy.param_kind, &binding.param_ref) {
            (Some(kind), Some(param)) => self.params(kind, param, write),
            (None, _) | (_, None) => Ok(vec![Value::Null]),
        };
        let params = match params {
            Ok(params) => params,
            Err(why) if policy.fails_closed => {
                return Err(Denial::invalid(format!("failed to configure binding: {why}")));
            }
            Err(_) => return Ok(vec![]),
        };
        let denials = params.into_iter().flat_map(|params| {
            inputs.set_params(&params);
            policy.judge(&inputs)
        });
        Ok(denials.collect())
    }

    /// The parameter objects of a binding. Without any, a binding that allows this has no effect.
    fn params(
        &self,
        (api_version, kind): &(String, String),
        param: &ParamRef,
        write: &WriteRequest<'_>,
    ) -> Result<Vec<Value>, String> {
        let found = self
            .registry
            .all()
            .find(|one| one.api_version() == *api_version && *one.kind == **kind);
        let resource = found.ok_or_else(|| {
            format!("failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'")
        })?;
        let namespace = match (resource.namespaced, param.namespace.as_deref()) {
            (false, _) => "",
            (true, Some(namespace)) => namespace,
            (true, None) if write.namespace.is_empty() => {
                return Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned());
            }
            (true, None) => write.namespace,
        };
        let found: Vec<Value> = if let Some(name) = &param.name {
            let entry = self.get(&resource.id, &key_of(namespace, name));
            entry.map(|entry| entry.value()).into_iter().collect()
        } else {
            let selector = serde_json::to_value(&param.selector).unwrap_or_default();
            let selector = LabelSelector::from_object(&selector).unwrap_or_default();
            let table = self.table(&resource.id).cloned().unwrap_or_default();
            let entries = range(&table, Some(namespace));
            let selected = entries.filter(|(_, entry)| selector.matches(|key| entry.label(key)));
            selected.map(|(_, entry)| entry.value()).collect()
        };
        if found.is_empty() && param.parameter_not_found_action.as_deref() == Some("Deny") {
            return Err(
                "no params found for policy binding with `Deny` parameterNotFoundAction".to_owned()
            );
        }
        Ok(found)
    }
}
