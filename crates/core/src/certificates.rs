//! When the hook server's certificate is renewed, and how its authority is exchanged.
//!
//! Everything is decided by what one Secret holds and the time, so any replica may do it:
//!
//! | the Secret holds | then |
//! |---|---|
//! | nothing | a new authority and a certificate |
//! | an authority that ends within [`AUTHORITY_RENEW_BEFORE`] | a second authority is put before it; clients trust both |
//! | a certificate of the older authority, [`OVERLAP`] after that | a certificate of the newer one |
//! | an older authority, [`OVERLAP`] after that | the older one goes |
//! | a certificate that ends within [`LEAF_RENEW_BEFORE`], or lacks a name | a new certificate |
//! | what somebody else made, such as cert-manager | it is used and never written |

use jiff::{SignedDuration, Timestamp};

/// How long an authority is good.
pub const AUTHORITY_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 365 * 5);
/// How long before its end an authority gets a successor: longer than a certificate lives, so that
/// none outlives its authority.
pub const AUTHORITY_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 180);
/// How long a certificate is good.
pub const LEAF_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 90);
/// How long before its end a certificate is renewed.
pub const LEAF_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 30);
/// How long two authorities are trusted before the newer one is used, and before the older one
/// goes. Cluster API takes up a changed bundle at once, or after its sync period of ten minutes, or
/// when it starts (`spec/capi.md 1.3`).
pub const OVERLAP: SignedDuration = SignedDuration::from_hours(1);
/// How far certificates begin in the past: the clocks of their readers may be slow.
pub const BACKDATE: SignedDuration = SignedDuration::from_mins(10);

/// What matters of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Whom it is for.
    pub subject: String,
    /// Who vouches for it.
    pub issuer: String,
    /// From when it is good.
    pub from: Timestamp,
    /// Until when it is good.
    pub until: Timestamp,
    /// Host names that it is good for.
    pub names: Vec<String>,
}

impl CertificateFacts {
    /// When it was made.
    fn made(&self) -> Timestamp {
        self.from + BACKDATE
    }
}

/// What we keep: authorities, the one that signs first, and the hook server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The authority that signs, whose key is kept.
    pub authority: CertificateFacts,
    /// Authorities that are trusted besides.
    pub older: Vec<CertificateFacts>,
    /// The hook server's certificate; `None` where it cannot be used.
    pub leaf: Option<CertificateFacts>,
}

/// What was found in the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is no such Secret.
    Absent,
    /// Somebody else keeps it.
    Foreign,
    /// It is ours and cannot be used.
    Broken {
        /// Why.
        reason: String,
    },
    /// It is ours.
    Ours(Box<Held>),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing before this time.
    Keep {
        /// When to look again.
        until: Timestamp,
    },
    /// Nothing ever: somebody else keeps it.
    Leave,
    /// A new authority and a certificate, in place of what is there.
    Create {
        /// Why.
        reason: String,
    },
    /// A new certificate of the authority that signs.
    RenewLeaf {
        /// Why.
        reason: String,
    },
    /// A new authority before the one that is there; the certificate stays.
    RotateAuthority,
    /// The older authorities go.
    DropOlder,
}

/// What is to be done about the hook server's certificate, which must carry `names`.
pub fn decide(found: &Found, names: &[String], now: Timestamp) -> Decision {
    match found {
        Found::Foreign => Decision::Leave,
        Found::Absent => Decision::Create { reason: "there is none yet".to_owned() },
        Found::Broken { reason } => Decision::Create { reason: reason.clone() },
        Found::Ours(held) => decide_held(held, names, now),
    }
}

fn decide_held(held: &Held, names: &[String], now: Timestamp) -> Decision {
    let Held { authority, older, leaf } = held;
    if authority.until <= now {
        return Decision::Create { reason: format!("the authority ended at {}", authority.until) };
    }
    let renew = |reason: String| Decision::RenewLeaf { reason };
    let Some(leaf) = leaf else {
        return renew("there is no certificate that can be used".to_owned());
    };
    let trusted = |issuer: &str| {
        authority.subject == issuer
            || older.iter().any(|other| other.subject == issuer && other.until > now)
    };
    if leaf.until <= now {
        return renew(format!("the certificate ended at {}", leaf.until));
    }
    if !trusted(&leaf.issuer) {
        return renew(format!("no authority here vouches for {}", leaf.issuer));
    }
    if let Some(missing) = names.iter().find(|name| !leaf.names.contains(name)) {
        return renew(format!("the certificate does not name {missing}"));
    }
    let rotate_at = authority.until - AUTHORITY_RENEW_BEFORE;
    if now >= rotate_at {
        return Decision::RotateAuthority;
    }
    if leaf.issuer != authority.subject {
        let switch_at = authority.made() + OVERLAP;
        if now >= switch_at {
            return renew(format!("the authority is now {}", authority.subject));
        }
        return Decision::Keep { until: switch_at.min(rotate_at).min(leaf.until) };
    }
    let renew_at = leaf.until - LEAF_RENEW_BEFORE;
    if now >= renew_at {
        return renew(format!("the certificate ends at {}", leaf.until));
    }
    let mut until = renew_at.min(rotate_at);
    if !older.is_empty() {
        let drop_at = leaf.made() + OVERLAP;
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

    fn ours(signs: CertificateFacts, older: &[CertificateFacts], leaf: CertificateFacts) -> Found {
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
    fn what_the_secret_holds_decides() {
        let hours = SignedDuration::from_hours;
        let old = hours(24 * (5 * 365 - 180));
        let end = hours(24 * 5 * 365);
        let (new, young) = (|| authority("a", hours(48)), hours(24));
        let cases = [
            ("nothing", Found::Absent, "create"),
            ("somebody else's", Found::Foreign, "leave"),
            ("rubbish", Found::Broken { reason: "no PEM".to_owned() }, "create"),
            ("fresh", ours(new(), &[], leaf("a", young)), "keep"),
            ("two thirds of its life", ours(new(), &[], leaf("a", hours(24 * 60))), "renew"),
            ("ended", ours(new(), &[], leaf("a", hours(24 * 90))), "renew"),
            ("of an unknown authority", ours(new(), &[], leaf("x", young)), "renew"),
            ("an old authority", ours(authority("a", old), &[], leaf("a", young)), "rotate"),
            ("an authority that ended", ours(authority("a", end), &[], leaf("a", young)), "create"),
            (
                "a new authority that not all trust yet",
                ours(authority("b", hours(0)), &[authority("a", old)], leaf("a", young)),
                "keep",
            ),
            (
                "a new authority that all trust",
                ours(authority("b", hours(1)), &[authority("a", old)], leaf("a", young)),
                "renew",
            ),
            (
                "a new certificate that not all replicas show yet",
                ours(authority("b", hours(2)), &[authority("a", old)], leaf("b", hours(0))),
                "keep",
            ),
            (
                "an authority that nobody needs",
                ours(authority("b", hours(2)), &[authority("a", old)], leaf("b", hours(1))),
                "drop",
            ),
        ];
        for (what, found, expected) in cases {
            assert_eq!(kind(&found), expected, "{what}");
        }
    }

    #[test]
    fn a_certificate_that_cannot_be_used_is_renewed_and_the_authority_stays() {
        let found = Found::Ours(Box::new(Held {
            authority: authority("a", SignedDuration::from_hours(48)),
            older: Vec::new(),
            leaf: None,
        }));
        assert_eq!(kind(&found), "renew");
    }

    #[test]
    fn a_name_that_is_missing_makes_a_new_certificate() {
        let mut bare = leaf("a", SignedDuration::from_hours(1));
        bare.names.clear();
        let found = ours(authority("a", SignedDuration::from_hours(2)), &[], bare);
        assert_eq!(kind(&found), "renew");
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        assert!(LEAF_VALIDITY < AUTHORITY_RENEW_BEFORE);
    }

    /// Follows the decisions for years: every state is good, and an authority is only ever used when
    /// it has been trusted for a while.
    #[test]
    fn a_rotation_never_shows_a_certificate_that_is_not_trusted_yet() {
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
