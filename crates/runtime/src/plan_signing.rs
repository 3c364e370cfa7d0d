//! Signed HostPlans: the controller signs them, and agents that require signatures verify them.
//!
//! A signature is ed25519 over the sha256 of the canonical JSON (keys sorted) of the plan's spec
//! and its context: the HostPlan's namespace, name and uid, which identify one node of one cluster;
//! the goal; and the creation time of the NodeUpdate, so that an older plan cannot replace a newer
//! one. The spec holds the uid of the NodeUpdate, the gate and the abort, so each move of a gate is
//! signed again. The signature is in an annotation, because a spec cannot contain a signature of
//! itself.
//!
//! Pure: no clock, no I/O. The same plan and key always produce the same signature.

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

/// Prefix of the signed message, so that a signature is valid for HostPlans only.
const CONTEXT: &str = "refit.dev/host-plan/v1 ";
/// DER prefix of every ed25519 public key (RFC 8410): algorithm and length never differ.
const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const PUBLIC_KEY_BYTES: usize = 32;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanKeyError {
    /// The text holds no private key.
    #[error(
        "invalid signing key ({reason}), expected an ed25519 key in PEM; create one with `openssl \
         genpkey -algorithm ed25519`"
    )]
    Private {
        /// What is wrong.
        reason: String,
    },
    /// The text holds no public key, or something other than public keys.
    #[error(
        "invalid public key {number} in the file ({reason}), expected an ed25519 key in PEM; \
         `openssl pkey -pubout` derives it from the signing key"
    )]
    Public {
        /// Position of the key in the file, from 1.
        number: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Why a plan is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// The plan has no signature.
    #[error("the plan is not signed")]
    Unsigned,
    /// The annotation is not a valid Refit signature.
    #[error("cannot read the signature of the plan: {reason}")]
    Unreadable {
        /// What is wrong.
        reason: String,
    },
    /// The key is unknown to this host.
    #[error("the plan is signed with key {key}, which this host does not trust")]
    UnknownKey {
        /// Id of the key.
        key: String,
    },
    /// The signature does not match the plan.
    #[error(
        "the signature does not match the plan: the plan was changed, belongs to another host, or \
         was signed by a version of Refit whose plans have other fields"
    )]
    Wrong,
    /// A newer plan was already accepted.
    #[error(
        "the plan was issued at {issued_at}, but one issued at {accepted} was already accepted"
    )]
    Older {
        /// When the NodeUpdate of this plan was created.
        issued_at: Timestamp,
        /// When the NodeUpdate of the accepted plan was created.
        accepted: Timestamp,
    },
}

/// What a signature covers in addition to the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claims {
    /// Hash of the goal of the NodeUpdate.
    pub goal_hash: String,
    /// When the NodeUpdate was created: orders the plans of a host.
    pub issued_at: Timestamp,
}

/// The content of the annotation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Signature {
    key: String,
    #[serde(flatten)]
    claims: Claims,
    value: String,
}

/// Signs plans. `Debug` never shows its key.
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
    /// A signer with the private key in a PEM text.
    pub fn from_pem(text: &str) -> Result<Self, PlanKeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| PlanKeyError::Private { reason: error.to_string() })?;
        // Files from OpenSSL contain no public half to compare with.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der())
            .map_err(|error| PlanKeyError::Private { reason: error.to_string() })?;
        let key = key_id(pair.public_key().as_ref());
        Ok(Self { pair, key })
    }

    /// Id of the key: the start of the sha256 of the public key.
    pub fn key_id(&self) -> &str {
        &self.key
    }

    /// Signs a plan with this spec; returns the annotation's value.
    pub fn sign(&self, plan: &HostPlan, spec: &HostPlanSpec, claims: &Claims) -> String {
        let value = self.pair.sign(&message(plan, spec, claims));
        let signature = Signature {
            key: self.key.clone(),
            claims: claims.clone(),
            value: BASE64_STANDARD.encode(value),
        };
        serde_json::to_string(&signature).expect("text and a timestamp serialise to JSON")
    }

    /// Whether the plan carries a valid signature of this key.
    pub fn has_signed(&self, plan: &HostPlan) -> bool {
        let public = self.pair.public_key().as_ref();
        verified(plan, |key| (key == self.key).then_some(public)).is_ok()
    }
}

/// The public keys that an agent trusts, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanKeys(BTreeMap<String, Vec<u8>>);

impl PlanKeys {
    /// Reads the public keys of a PEM text; it must contain at least one.
    pub fn from_pem(text: &str) -> Result<Self, PlanKeyError> {
        let mut keys = BTreeMap::new();
        for (index, found) in SubjectPublicKeyInfoDer::pem_slice_iter(text.as_bytes()).enumerate() {
            let bad = |reason: String| PlanKeyError::Public { number: index + 1, reason };
            let der = found.map_err(|error| bad(error.to_string()))?;
            let public = der
                .strip_prefix(&SPKI_PREFIX)
                .filter(|public| public.len() == PUBLIC_KEY_BYTES)
                .ok_or_else(|| bad("the PEM block has another type".to_owned()))?;
            keys.insert(key_id(public), public.to_vec());
        }
        if keys.is_empty() {
            return Err(PlanKeyError::Public {
                number: 1,
                reason: "the file has no PEM block".to_owned(),
            });
        }
        Ok(Self(keys))
    }

    /// Ids of the keys.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Verifies that one of the keys signed the plan, and returns the signature's claims.
    pub fn verify(&self, plan: &HostPlan) -> Result<Claims, Distrust> {
        verified(plan, |key| self.0.get(key).map(Vec::as_slice))
    }
}

/// The claims of a plan's signature, verified or not.
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

    /// A private key file as `openssl genpkey` would make it from a seed.
    fn private(seed: u8) -> String {
        let head = [
            0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22,
            0x04, 0x20,
        ];
        pem("PRIVATE KEY", &[&head[..], &[seed; 32]].concat())
    }

    /// The public key file as `openssl pkey -pubout` makes it.
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
    fn the_agent_accepts_plans_signed_by_the_controller() {
        assert_eq!(check(&signed()), Ok(claims()));
        assert!(signer().has_signed(&signed()));
        // An API server stores it as JSON and may return its keys in another order.
        let text = serde_json::to_string(&signed()).unwrap();
        assert_eq!(check(&serde_json::from_str(&text).unwrap()), Ok(claims()));
    }

    #[test]
    fn a_changed_plan_is_not_trusted() {
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
    fn a_moved_gate_is_signed_again() {
        let mut plan = signed();
        plan.spec.gate = Gate::Upgrade;
        assert!(!signer().has_signed(&plan));
        sign(&mut plan);
        assert_eq!(check(&plan), Ok(claims()));
    }

    #[test]
    fn unsigned_plans_and_unknown_keys_have_their_own_errors() {
        let mut plan = signed();
        let strangers = PlanKeys::from_pem(&public(2)).unwrap();
        let key = signer().key_id().to_owned();
        assert_eq!(strangers.verify(&plan), Err(Distrust::UnknownKey { key }));
        // Two keys in one file, as during a key rotation.
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
    fn a_file_without_a_key_is_rejected_with_the_openssl_command() {
        let error = PlanSigner::from_pem(&public(1)).unwrap_err().to_string();
        assert!(error.contains("openssl genpkey"), "{error}");
        let error = PlanKeys::from_pem("").unwrap_err().to_string();
        assert!(error.contains("-pubout"), "{error}");
        let error = PlanKeys::from_pem(&public(1).replace("MCow", "MCox")).unwrap_err();
        assert!(matches!(error, PlanKeyError::Public { number: 1, .. }));
    }
}
