//! When the hook server's certificate is renewed, and how its authority is rotated.
//!
//! The decision depends only on the contents of one Secret and the current time, so any replica can
//! make it:
//!
//! | Secret contents | action |
//! |---|---|
//! | nothing | create an authority and a certificate |
//! | an authority near its end ([`AUTHORITY_RENEW_BEFORE`]) | add a new one; clients trust both |
//! | a certificate of the older authority, [`OVERLAP`] after that | issue one from the newer |
//! | an older authority, [`OVERLAP`] after that | remove the older authority |
//! | a certificate near its end ([`LEAF_RENEW_BEFORE`]), or without a name | issue a new one |
//! | data that another component manages, such as cert-manager | use it, never write it |

use jiff::{SignedDuration, Timestamp};

/// How long an authority is valid.
pub const AUTHORITY_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 365 * 5);
/// How long before its expiry an authority gets a successor. Longer than the lifetime of a
/// certificate, so that no certificate outlives its authority.
pub const AUTHORITY_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 180);
/// How long a certificate is valid.
pub const LEAF_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 90);
/// How long before its expiry a certificate is renewed.
pub const LEAF_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 30);
/// How long two authorities are trusted before the newer one is used, and before the older one is
/// removed. Cluster API picks up a changed bundle immediately, after its sync period of ten
/// minutes, or at startup (`docs/facts/hooks.md#extensionconfig`).
pub const OVERLAP: SignedDuration = SignedDuration::from_hours(1);
/// How far certificates are backdated, because the clocks of clients may be slow.
pub const BACKDATE: SignedDuration = SignedDuration::from_mins(10);

/// The fields of a certificate that the decision needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Subject.
    pub subject: String,
    /// Issuer.
    pub issuer: String,
    /// Start of validity.
    pub from: Timestamp,
    /// End of validity.
    pub until: Timestamp,
    /// DNS names in the certificate.
    pub names: Vec<String>,
}

impl CertificateFacts {
    /// When the certificate was issued.
    fn issued_at(&self) -> Timestamp {
        self.from + BACKDATE
    }
}

/// Certificates that Refit manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The authority that signs; its key is kept.
    pub authority: CertificateFacts,
    /// Older authorities that are still trusted.
    pub older: Vec<CertificateFacts>,
    /// The hook server's certificate; `None` if it is unusable.
    pub leaf: Option<CertificateFacts>,
}

/// State of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The Secret does not exist.
    Absent,
    /// Another component manages the Secret.
    Foreign,
    /// Refit manages the Secret, but its contents are unusable.
    Broken {
        /// Why the contents are unusable.
        reason: String,
    },
    /// Refit manages the Secret.
    Ours(Box<Held>),
}

/// What to do with the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Do nothing before this time.
    Keep {
        /// When to check again.
        until: Timestamp,
    },
    /// Never write: another component manages the Secret.
    Leave,
    /// Create an authority and a certificate, replacing the existing ones.
    Create {
        /// Why they are created.
        reason: String,
    },
    /// Issue a new certificate from the signing authority.
    RenewLeaf {
        /// Why the certificate is renewed.
        reason: String,
    },
    /// Add a new authority before the existing one; keep the certificate.
    RotateAuthority,
    /// Remove the older authorities.
    DropOlder,
}

/// Decides what to do with the hook server's certificate, which must contain `names`.
pub fn decide(found: &Found, names: &[String], now: Timestamp) -> Decision {
    match found {
        Found::Foreign => Decision::Leave,
        Found::Absent => Decision::Create { reason: "no certificate exists yet".to_owned() },
        Found::Broken { reason } => Decision::Create { reason: reason.clone() },
        Found::Ours(held) => decide_held(held, names, now),
    }
}

fn decide_held(held: &Held, names: &[String], now: Timestamp) -> Decision {
    let Held { authority, older, leaf } = held;
    if authority.until <= now {
        return Decision::Create {
            reason: format!("the authority expired at {}", authority.until),
        };
    }
    let renew = |reason: String| Decision::RenewLeaf { reason };
    let Some(leaf) = leaf else {
        return renew("no valid certificate exists".to_owned());
    };
    let trusted = |issuer: &str| {
        authority.subject == issuer
            || older.iter().any(|other| other.subject == issuer && other.until > now)
    };
    if leaf.until <= now {
        return renew(format!("the certificate expired at {}", leaf.until));
    }
    if !trusted(&leaf.issuer) {
        return renew(format!("the issuer {} is not a trusted authority", leaf.issuer));
    }
    if let Some(missing) = names.iter().find(|name| !leaf.names.contains(name)) {
        return renew(format!("the certificate is not valid for {missing}"));
    }
    let rotate_at = authority.until - AUTHORITY_RENEW_BEFORE;
    if now >= rotate_at {
        return Decision::RotateAuthority;
    }
    if leaf.issuer != authority.subject {
        let switch_at = authority.issued_at() + OVERLAP;
        if now >= switch_at {
            return renew(format!("the current authority is {}", authority.subject));
        }
        return Decision::Keep { until: switch_at.min(rotate_at).min(leaf.until) };
    }
    let renew_at = leaf.until - LEAF_RENEW_BEFORE;
    if now >= renew_at {
        return renew(format!("the certificate expires at {}", leaf.until));
    }
    let mut until = renew_at.min(rotate_at);
    if !older.is_empty() {
        let drop_at = leaf.issued_at() + OVERLAP;
        if now >= drop_at {
            return Decision::DropOlder;
        }
        until = until.min(drop_at);
    }
    Decision::Keep { until }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-03-02T08:00:00Z".parse().unwrap()
    }

    fn names() -> Vec<String> {
        vec!["refit-webhook.refit-system.svc".to_owned()]
    }

    fn certificate(
        subject: &str,
        issuer: &str,
        made: Timestamp,
        valid: SignedDuration,
    ) -> CertificateFacts {
        CertificateFacts {
            subject: subject.to_owned(),
            issuer: issuer.to_owned(),
            from: made - BACKDATE,
            until: made + valid,
            names: names(),
        }
    }

    fn authority(name: &str, age: SignedDuration) -> CertificateFacts {
        certificate(name, name, now() - age, AUTHORITY_VALIDITY)
    }

    fn leaf(issuer: &str, age: SignedDuration) -> CertificateFacts {
        certificate("leaf", issuer, now() - age, LEAF_VALIDITY)
    }

    fn managed(
        signs: CertificateFacts,
        older: &[CertificateFacts],
        leaf: CertificateFacts,
    ) -> Found {
        Found::Ours(Box::new(Held { authority: signs, older: older.to_vec(), leaf: Some(leaf) }))
    }

    fn kind(found: &Found) -> &'static str {
        match decide(found, &names(), now()) {
            Decision::Keep { until } => {
                assert!(until > now(), "{until}");
                "keep"
            }
            Decision::Leave => "leave",
            Decision::Create { .. } => "create",
            Decision::RenewLeaf { .. } => "renew",
            Decision::RotateAuthority => "rotate",
            Decision::DropOlder => "drop",
        }
    }

    #[test]
    fn the_secret_determines_the_decision() {
        let hours = SignedDuration::from_hours;
        let old = hours(24 * (5 * 365 - 180));
        let end = hours(24 * 5 * 365);
        let (new, young) = (|| authority("a", hours(48)), hours(24));
        let cases = [
            ("nothing", Found::Absent, "create"),
            ("another component's", Found::Foreign, "leave"),
            ("rubbish", Found::Broken { reason: "no PEM".to_owned() }, "create"),
            ("fresh", managed(new(), &[], leaf("a", young)), "keep"),
            ("two thirds of its life", managed(new(), &[], leaf("a", hours(24 * 60))), "renew"),
            ("ended", managed(new(), &[], leaf("a", hours(24 * 90))), "renew"),
            ("of an unknown authority", managed(new(), &[], leaf("x", young)), "renew"),
            ("an old authority", managed(authority("a", old), &[], leaf("a", young)), "rotate"),
            (
                "an authority that ended",
                managed(authority("a", end), &[], leaf("a", young)),
                "create",
            ),
            (
                "a new authority that not all trust yet",
                managed(authority("b", hours(0)), &[authority("a", old)], leaf("a", young)),
                "keep",
            ),
            (
                "a new authority that all trust",
                managed(authority("b", hours(1)), &[authority("a", old)], leaf("a", young)),
                "renew",
            ),
            (
                "a new certificate that not all replicas show yet",
                managed(authority("b", hours(2)), &[authority("a", old)], leaf("b", hours(0))),
                "keep",
            ),
            (
                "an authority that is no longer needed",
                managed(authority("b", hours(2)), &[authority("a", old)], leaf("b", hours(1))),
                "drop",
            ),
        ];
        for (what, found, expected) in cases {
            assert_eq!(kind(&found), expected, "{what}");
        }
    }

    #[test]
    fn an_unusable_certificate_is_renewed_by_the_same_authority() {
        let found = Found::Ours(Box::new(Held {
            authority: authority("a", SignedDuration::from_hours(48)),
            older: Vec::new(),
            leaf: None,
        }));
        assert_eq!(kind(&found), "renew");
    }

    #[test]
    fn a_missing_name_renews_the_certificate() {
        let mut bare = leaf("a", SignedDuration::from_hours(1));
        bare.names.clear();
        let found = managed(authority("a", SignedDuration::from_hours(2)), &[], bare);
        assert_eq!(kind(&found), "renew");
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        assert!(LEAF_VALIDITY < AUTHORITY_RENEW_BEFORE);
    }

    /// Follows the decisions for years: every state is valid, and an authority is used only after
    /// it has been trusted for the overlap.
    #[test]
    fn a_rotation_never_uses_an_untrusted_certificate() {
        let start = now();
        let mut time = start;
        let mut generation = 0;
        let make = |name: &str, time| certificate(name, name, time, AUTHORITY_VALIDITY);
        let mut held = Held {
            authority: make("ca-0", time),
            older: Vec::new(),
            leaf: Some(certificate("leaf", "ca-0", time, LEAF_VALIDITY)),
        };
        let mut trusted_since = std::collections::BTreeMap::from([("ca-0".to_owned(), time)]);
        while time < start + SignedDuration::from_hours(24 * 365 * 12) {
            match decide(&Found::Ours(Box::new(held.clone())), &names(), time) {
                Decision::Keep { until } => {
                    assert!(until > time);
                    time = until;
                }
                Decision::RotateAuthority => {
                    generation += 1;
                    let name = format!("ca-{generation}");
                    let next = make(&name, time);
                    let before = std::mem::replace(&mut held.authority, next);
                    held.older = vec![before];
                    trusted_since.insert(name, time);
                }
                Decision::RenewLeaf { .. } => {
                    let issuer = held.authority.subject.clone();
                    let since = trusted_since[&issuer];
                    assert!(since == start || time - OVERLAP >= since);
                    let leaf = certificate("leaf", &issuer, time, LEAF_VALIDITY);
                    assert!(leaf.until <= held.authority.until);
                    held.leaf = Some(leaf);
                }
                Decision::DropOlder => held.older.clear(),
                other => panic!("{other:?}"),
            }
            assert!(held.leaf.as_ref().is_some_and(|leaf| leaf.until > time));
        }
        assert!(generation >= 2);
    }
}
