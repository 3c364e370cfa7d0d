//! When the certificate of the hook server and that of its clients are renewed, and how their
//! authorities are rotated.
//!
//! The decision depends only on the contents of one Secret and the current time, so any replica can
//! make it:
//!
//! | Secret contents | action |
//! |---|---|
//! | nothing | create an authority and a certificate |
//! | an authority near its end ([`Lifetimes`]) | add a new one; both are trusted |
//! | a certificate of the older authority, [`OVERLAP`] after that | issue one from the newer |
//! | an older authority, [`OVERLAP`] after that; if the certificate is copied, at its end | remove the older authority |
//! | a certificate near its end ([`Lifetimes`]), or without a name | issue a new one |
//! | data that another component manages, such as cert-manager | use it, never write it |

use jiff::{SignedDuration, Timestamp};

/// How long certificates are valid, and when they are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// How long an authority is valid.
    pub authority: SignedDuration,
    /// How long before its expiry an authority gets a successor. Longer than the lifetime of a
    /// certificate, so that no certificate outlives its authority.
    pub authority_renew_before: SignedDuration,
    /// How long a certificate is valid.
    pub leaf: SignedDuration,
    /// How long before its expiry a certificate is renewed.
    pub leaf_renew_before: SignedDuration,
    /// Whether operators copy the certificate elsewhere: an older authority is trusted until it
    /// expires, because a copy is as old as its operator left it.
    pub copied: bool,
}

/// The certificate of the hook server, which every replica takes from the Secret.
pub const SERVER: Lifetimes = Lifetimes {
    authority: days(5 * 365),
    authority_renew_before: days(180),
    leaf: days(90),
    leaf_renew_before: days(30),
    copied: false,
};
/// The certificate of Cluster API's managers. Their namespaces hold copies of it, because a pod
/// cannot mount the Secret of another namespace: a copy that is renewed within two years of its
/// source never expires.
pub const CLIENT: Lifetimes = Lifetimes {
    authority: days(15 * 365),
    authority_renew_before: days(6 * 365),
    leaf: days(5 * 365),
    leaf_renew_before: days(2 * 365),
    copied: true,
};
/// How long two authorities are trusted before the newer one is used, and before the older one is
/// removed. Cluster API picks up a changed bundle immediately, after its sync period of ten
/// minutes, or at startup (`docs/facts/hooks.md#extensionconfig`).
pub const OVERLAP: SignedDuration = SignedDuration::from_hours(1);
/// How far certificates are backdated, because the clocks of clients may be slow.
pub const BACKDATE: SignedDuration = SignedDuration::from_mins(10);

const fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

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
    /// The certificate; `None` if it is unusable.
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

/// Decides what to do with a certificate, which must contain `names`.
pub fn decide(found: &Found, names: &[String], lifetimes: &Lifetimes, now: Timestamp) -> Decision {
    match found {
        Found::Foreign => Decision::Leave,
        Found::Absent => Decision::Create { reason: "no certificate exists yet".to_owned() },
        Found::Broken { reason } => Decision::Create { reason: reason.clone() },
        Found::Ours(held) => decide_held(held, names, lifetimes, now),
    }
}

fn decide_held(held: &Held, names: &[String], lifetimes: &Lifetimes, now: Timestamp) -> Decision {
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
    let rotate_at = authority.until - lifetimes.authority_renew_before;
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
    let renew_at = leaf.until - lifetimes.leaf_renew_before;
    if now >= renew_at {
        return renew(format!("the certificate expires at {}", leaf.until));
    }
    let mut until = renew_at.min(rotate_at);
    if let Some(last) = older.iter().map(|other| other.until).max() {
        let drop_at = if lifetimes.copied { last } else { leaf.issued_at() + OVERLAP };
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

    const AUTHORITY_VALIDITY: SignedDuration = SERVER.authority;
    const LEAF_VALIDITY: SignedDuration = SERVER.leaf;

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
        match decide(found, &names(), &SERVER, now()) {
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
        for lifetimes in [SERVER, CLIENT] {
            assert!(lifetimes.leaf < lifetimes.authority_renew_before);
        }
    }

    /// Follows the decisions for years: every state is valid, and an authority is used only after
    /// it has been trusted for the overlap. Copies of a certificate stay trusted until they expire.
    #[test]
    fn a_rotation_never_uses_an_untrusted_certificate() {
        follow(&SERVER, 12);
        follow(&CLIENT, 60);
    }

    fn follow(lifetimes: &Lifetimes, years: i64) {
        let start = now();
        let mut time = start;
        let mut generation = 0;
        let make = |name: &str, time| certificate(name, name, time, lifetimes.authority);
        let first = certificate("leaf", "ca-0", time, lifetimes.leaf);
        let mut issued = vec![first.clone()];
        let mut held = Held { authority: make("ca-0", time), older: Vec::new(), leaf: Some(first) };
        let mut trusted_since = std::collections::BTreeMap::from([("ca-0".to_owned(), time)]);
        while time < start + days(365 * years) {
            match decide(&Found::Ours(Box::new(held.clone())), &names(), lifetimes, time) {
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
                    let leaf = certificate("leaf", &issuer, time, lifetimes.leaf);
                    assert!(leaf.until <= held.authority.until);
                    issued.push(leaf.clone());
                    held.leaf = Some(leaf);
                }
                Decision::DropOlder => held.older.clear(),
                other => panic!("{other:?}"),
            }
            assert!(held.leaf.as_ref().is_some_and(|leaf| leaf.until > time));
            issued.retain(|leaf| lifetimes.copied && leaf.until > time);
            for leaf in &issued {
                let trusted = held.older.iter().chain([&held.authority]);
                assert!(trusted.clone().any(|authority| authority.subject == leaf.issuer));
            }
        }
        assert!(generation >= 2);
    }
}
