//! Signed HostPlans: what a controller signs, and what an agent that asks for signatures believes.
//!
//! A signature is ed25519 over the sha256 of the canonical JSON (keys sorted) of the plan's spec and
//! of what it is for: the HostPlan by namespace, name and uid, and so one node of one cluster; the
//! goal; and when the NodeUpdate was made, so that an older plan cannot be put in place of a newer
//! one. The spec holds the uid of the NodeUpdate, the gate and the abort, so each move of a gate is
//! signed anew. It stands in an annotation, because a spec cannot hold a signature of itself.
//!
//! Pure: no clock, no I/O. The same plan and key always have the same signature.

use std::{collections::BTreeMap, fmt::Write as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use refit_kinds::refit::{HostPlan, HostPlanSpec, hash_json};
use ring::{
    digest,
    signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, pem::PemObject as _};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// What is signed starts with it: a signature of this kind is good for nothing else.
const CONTEXT: &str = "refit.dev/host-plan/v1 ";
/// What every ed25519 public key starts with in DER (RFC 8410): algorithm and length never differ.
const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const PUBLIC_KEY_BYTES: usize = 32;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanKeyError {
    /// The text holds no private key.
    #[error(
        "the signing key is no ed25519 key in PEM ({reason}); make one with `openssl genpkey \
         -algorithm ed25519`"
    )]
    Private {
        /// What is wrong.
        reason: String,
    },
    /// The text holds no public key, or something beside public keys.
    #[error(
        "public key {number} of the file is no ed25519 key in PEM ({reason}); `openssl pkey -pubout` \
         makes it from the signing key"
    )]
    Public {
        /// Which one, from 1.
        number: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Why a plan is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// It has no signature.
    #[error("the plan is not signed")]
    Unsigned,
    /// Its annotation is not one of ours.
    #[error("the signature of the plan cannot be read: {reason}")]
    Unreadable {
        /// What is wrong.
        reason: String,
    },
    /// Nobody here knows the key.
    #[error("the plan is signed with key {key}, which this host does not know")]
    UnknownKey {
        /// Its id.
        key: String,
    },
    /// The plan is not what was signed.
    #[error(
        "the signature of the plan does not match it: it was changed, is of another host, or was made \
         by another version, whose plans have other fields"
    )]
    Wrong,
    /// A newer plan was accepted before.
    #[error("the plan is of {issued_at}, and one of {accepted} was accepted already")]
    Older {
        /// When its NodeUpdate was made.
        issued_at: Timestamp,
        /// When that of the accepted one was.
        accepted: Timestamp,
    },
}

/// What a signature says beside the plan itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claims {
    /// Hash of the goal of the NodeUpdate.
    pub goal_hash: String,
    /// When the NodeUpdate was made: orders the plans of a host.
    pub issued_at: Timestamp,
}

/// The annotation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Signature {
    key: String,
    #[serde(flatten)]
    claims: Claims,
    value: String,
}

/// Signs plans. Its key is never shown.
pub struct PlanSigner {
    pair: Ed25519KeyPair,
    key: String,
}

impl std::fmt::Debug for PlanSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanSigner").field("key", &self.key).finish_non_exhaustive()
    }
}

impl PlanSigner {
    /// A signer with the private key of a PEM text.
    pub fn from_pem(text: &str) -> Result<Self, PlanKeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| PlanKeyError::Private { reason: error.to_string() })?;
        // OpenSSL's files hold no public half: there is nothing that it could be compared with.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der())
            .map_err(|error| PlanKeyError::Private { reason: error.to_string() })?;
        let key = key_id(pair.public_key().as_ref());
        Ok(Self { pair, key })
    }

    /// Id of the key: the start of the public key's sha256.
    pub fn key_id(&self) -> &str {
        &self.key
    }

    /// The annotation for a plan with this spec.
    pub fn sign(&self, plan: &HostPlan, spec: &HostPlanSpec, claims: &Claims) -> String {
        let value = self.pair.sign(&message(plan, spec, claims));
        let signature = Signature {
            key: self.key.clone(),
            claims: claims.clone(),
            value: BASE64_STANDARD.encode(value),
        };
        serde_json::to_string(&signature).expect("text and a time are JSON")
    }

    /// Whether a plan carries a signature of this key that matches it.
    pub fn has_signed(&self, plan: &HostPlan) -> bool {
        let public = self.pair.public_key().as_ref();
        verified(plan, |key| (key == self.key).then_some(public)).is_ok()
    }
}

/// What an agent believes: public keys by their id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanKeys(BTreeMap<String, Vec<u8>>);

impl PlanKeys {
    /// The public keys of a PEM text, at least one.
    pub fn from_pem(text: &str) -> Result<Self, PlanKeyError> {
        let mut keys = BTreeMap::new();
        for (index, found) in SubjectPublicKeyInfoDer::pem_slice_iter(text.as_bytes()).enumerate() {
            let bad = |reason: String| PlanKeyError::Public { number: index + 1, reason };
            let der = found.map_err(|error| bad(error.to_string()))?;
            let public = der
                .strip_prefix(&SPKI_PREFIX)
                .filter(|public| public.len() == PUBLIC_KEY_BYTES)
                .ok_or_else(|| bad("it is of another kind".to_owned()))?;
            keys.insert(key_id(public), public.to_vec());
        }
        if keys.is_empty() {
            return Err(PlanKeyError::Public { number: 1, reason: "there is none".to_owned() });
        }
        Ok(Self(keys))
    }

    /// Ids of the keys.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether a plan is signed by one of the keys, and what its signature says.
    pub fn verify(&self, plan: &HostPlan) -> Result<Claims, Distrust> {
        verified(plan, |key| self.0.get(key).map(Vec::as_slice))
    }
}

/// What the signature of a plan says, whether it is right or not.
pub fn claims_of(plan: &HostPlan) -> Option<Claims> {
    read(plan).ok().map(|signature| signature.claims)
}

fn verified<'a>(
    plan: &HostPlan,
    public: impl FnOnce(&str) -> Option<&'a [u8]>,
) -> Result<Claims, Distrust> {
    let signature = read(plan)?;
    let Some(public) = public(&signature.key) else {
        return Err(Distrust::UnknownKey { key: signature.key });
    };
    let value = BASE64_STANDARD
        .decode(&signature.value)
        .map_err(|error| Distrust::Unreadable { reason: error.to_string() })?;
    UnparsedPublicKey::new(&ED25519, public)
        .verify(&message(plan, &plan.spec, &signature.claims), &value)
        .map_err(|_| Distrust::Wrong)?;
    Ok(signature.claims)
}

fn read(plan: &HostPlan) -> Result<Signature, Distrust> {
    let annotations = plan.metadata.annotations.as_ref();
    let text = annotations
        .and_then(|annotations| annotations.get(refit_kinds::keys::PLAN_SIGNATURE))
        .ok_or(Distrust::Unsigned)?;
    serde_json::from_str(text).map_err(|error| Distrust::Unreadable { reason: error.to_string() })
}

fn message(plan: &HostPlan, spec: &HostPlanSpec, claims: &Claims) -> Vec<u8> {
    let metadata = &plan.metadata;
    let signed = json!({
        "namespace": metadata.namespace.as_deref().unwrap_or_default(),
        "name": metadata.name.as_deref().unwrap_or_default(),
        "uid": metadata.uid.as_deref().unwrap_or_default(),
        "claims": claims,
        "spec": spec,
    });
    [CONTEXT, &hash_json(&signed)].concat().into_bytes()
}

fn key_id(public: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, public);
    let mut id = String::with_capacity(16);
    for byte in digest.as_ref().iter().take(8) {
        write!(id, "{byte:02x}").expect("writing to a String cannot fail");
    }
    id
}

#[cfg(test)]
mod tests {
    use refit_kinds::{
        keys,
        refit::{Gate, HostStep, PlannedStep},
    };

    use super::*;

    fn pem(label: &str, der: &[u8]) -> String {
        let text = BASE64_STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    }

    /// The file that `openssl genpkey` would make of a seed.
    fn private(seed: u8) -> String {
        let head = [
            0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22,
            0x04, 0x20,
        ];
        pem("PRIVATE KEY", &[&head[..], &[seed; 32]].concat())
    }

    /// The file that `openssl pkey -pubout` makes of it.
    fn public(seed: u8) -> String {
        let signer = PlanSigner::from_pem(&private(seed)).unwrap();
        let der = [&SPKI_PREFIX, signer.pair.public_key().as_ref()].concat();
        pem("PUBLIC KEY", &der)
    }

    fn signer() -> PlanSigner {
        PlanSigner::from_pem(&private(1)).unwrap()
    }

    fn claims() -> Claims {
        Claims { goal_hash: "9c1d".to_owned(), issued_at: Timestamp::from_second(1000).unwrap() }
    }

    fn signed() -> HostPlan {
        let spec = HostPlanSpec {
            plan_id: "u1".into(),
            gate: Gate::Stage,
            steps: vec![PlannedStep::new(HostStep::Snapshot {})],
            ..HostPlanSpec::default()
        };
        let mut plan = HostPlan::new("n1", spec);
        plan.metadata.namespace = Some("refit-system".to_owned());
        plan.metadata.uid = Some("host-plan-uid".to_owned());
        sign(&mut plan);
        plan
    }

    fn sign(plan: &mut HostPlan) {
        let value = signer().sign(plan, &plan.spec, &claims());
        plan.metadata.annotations = Some([(keys::PLAN_SIGNATURE.to_owned(), value)].into());
    }

    fn check(plan: &HostPlan) -> Result<Claims, Distrust> {
        PlanKeys::from_pem(&public(1)).unwrap().verify(plan)
    }

    #[test]
    fn what_the_controller_signs_the_agent_believes() {
        assert_eq!(check(&signed()), Ok(claims()));
        assert!(signer().has_signed(&signed()));
        // An API server keeps it as JSON and gives it back with its keys in another order.
        let text = serde_json::to_string(&signed()).unwrap();
        assert_eq!(check(&serde_json::from_str(&text).unwrap()), Ok(claims()));
    }

    #[test]
    fn whatever_is_changed_is_not_believed() {
        let changes: [fn(&mut HostPlan); 7] = [
            |plan| plan.spec.gate = Gate::Disrupt,
            |plan| plan.spec.plan_id = "u2".into(),
            |plan| plan.spec.abort = true,
            |plan| plan.spec.steps.push(PlannedStep::new(HostStep::Reboot {})),
            |plan| plan.metadata.name = Some("n2".to_owned()),
            |plan| plan.metadata.namespace = Some("other".to_owned()),
            |plan| plan.metadata.uid = Some("of another cluster".to_owned()),
        ];
        for change in changes {
            let mut plan = signed();
            change(&mut plan);
            assert_eq!(check(&plan), Err(Distrust::Wrong));
        }
    }

    #[test]
    fn neither_goal_nor_time_can_be_exchanged() {
        for (from, to) in [("9c1d", "9c1e"), ("00:16:40Z", "00:16:41Z")] {
            let mut plan = signed();
            let annotations = plan.metadata.annotations.as_mut().unwrap();
            let text = annotations.get_mut(keys::PLAN_SIGNATURE).unwrap();
            assert!(text.contains(from), "{text}");
            *text = text.replace(from, to);
            assert_eq!(check(&plan), Err(Distrust::Wrong));
        }
    }

    #[test]
    fn a_gate_that_moved_is_signed_anew() {
        let mut plan = signed();
        plan.spec.gate = Gate::Upgrade;
        assert!(!signer().has_signed(&plan));
        sign(&mut plan);
        assert_eq!(check(&plan), Ok(claims()));
    }

    #[test]
    fn a_plan_without_signature_or_of_an_unknown_key_says_so() {
        let mut plan = signed();
        let strangers = PlanKeys::from_pem(&public(2)).unwrap();
        let key = signer().key_id().to_owned();
        assert_eq!(strangers.verify(&plan), Err(Distrust::UnknownKey { key }));
        // Two keys in one file: an exchange of keys passes through this.
        let both = PlanKeys::from_pem(&[public(2), public(1)].concat()).unwrap();
        assert_eq!(both.ids().count(), 2);
        assert_eq!(both.verify(&plan), Ok(claims()));
        plan.metadata.annotations = None;
        assert_eq!(check(&plan), Err(Distrust::Unsigned));
        let none = [(keys::PLAN_SIGNATURE.to_owned(), "{}".to_owned())];
        plan.metadata.annotations = Some(none.into());
        assert!(matches!(check(&plan), Err(Distrust::Unreadable { .. })));
    }

    #[test]
    fn a_file_that_holds_no_key_is_refused_with_the_way_to_make_one() {
        let error = PlanSigner::from_pem(&public(1)).unwrap_err().to_string();
        assert!(error.contains("openssl genpkey"), "{error}");
        let error = PlanKeys::from_pem("").unwrap_err().to_string();
        assert!(error.contains("-pubout"), "{error}");
        let error = PlanKeys::from_pem(&public(1).replace("MCow", "MCox")).unwrap_err();
        assert!(matches!(error, PlanKeyError::Public { number: 1, .. }));
    }
}
