//! Whether the providers of infrastructure machines accept what Updaters claim of them.
//!
//! Only an API server knows. A prediction lists the questions that it depends on; with the answers in its
//! input it is repeated.

use std::collections::BTreeMap;

use refit_core::change::{Provider, Question};
use refit_kinds::json::{namespace, text};
use serde_json::Value;

/// Names an infrastructure machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InfrastructureMachine {
    /// Its namespace.
    pub namespace: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl InfrastructureMachine {
    /// The infrastructure machine of a Machine; `None` if the Machine refers to none.
    pub(super) fn of(machine: &Value) -> Option<Self> {
        let part = |key: &str| text(machine, &format!("/spec/infrastructureRef/{key}")).to_owned();
        let (kind, name) = (part("kind"), part("name"));
        (!name.is_empty()).then(|| Self { namespace: namespace(machine).to_owned(), kind, name })
    }
}

/// A question to the provider of an infrastructure machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderQuestion {
    /// The machine.
    pub machine: InfrastructureMachine,
    /// The change.
    pub change: Question,
}

/// The answers of providers.
#[derive(Clone, Debug, PartialEq)]
pub enum Providers {
    /// There is no API server to ask: each one accepts.
    Assumed,
    /// The answers so far.
    Asked(BTreeMap<InfrastructureMachine, Provider>),
}

impl Providers {
    /// The answer about a machine.
    pub(super) fn answer(&self, question: &ProviderQuestion) -> Provider {
        match self {
            Self::Assumed => question.change.accepted.clone(),
            Self::Asked(answers) => answers.get(&question.machine).cloned().unwrap_or_default(),
        }
    }
}
