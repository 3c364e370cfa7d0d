//! The manager of the hooks' certificate against an API server in process.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use lab_apiserver::{ApiServer, Options};
use refit_controller::{
    ClientRefusal, ClientTrust,
    certificates::{CertificateSettings, Certificates},
};
use refit_runtime::{
    Clock,
    serve::PeerCertificates,
    tls::{Authority, KeyAndCert, Validity},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::json;
use x509_parser::{
    extensions::GeneralName,
    pem::{Pem, parse_x509_pem},
};

const DAY: u64 = 24 * 3600;

struct World {
    server: ApiServer,
    clock: Clock,
}

impl World {
    async fn new() -> Self {
        let epoch: Timestamp = "2026-03-02T08:00:00Z".parse().unwrap();
        let clock = Clock::simulated(epoch);
        let server = ApiServer::new(Options::new(Arc::new(move || clock.now())));
        let world = Self { server, clock };
        let body = serde_json::from_value(json!({"metadata": {"name": "refit-system"}})).unwrap();
        let namespaces: Api<Namespace> = Api::all(world.client());
        namespaces.create(&PostParams::default(), &body).await.unwrap();
        world
    }

    fn client(&self) -> Client {
        Client::new(self.server.clone(), "default")
    }

    fn keeper(&self) -> Certificates {
        Certificates::new(self.client(), self.clock, CertificateSettings::default())
    }

    fn clients(&self) -> Certificates {
        let settings = CertificateSettings::of_clients("refit-system");
        Certificates::new(self.client(), self.clock, settings)
    }

    /// Performs due changes of the clients' Secret until nothing is due.
    async fn settle_clients(&self) -> Arc<ClientTrust> {
        for _ in 0..10 {
            let revision = self.server.revision();
            let trust = self.clients().clients().await;
            if self.server.revision() == revision {
                return trust;
            }
        }
        panic!("the keeper never rests");
    }

    /// The certificates that a copy of the managers' Secret presents.
    async fn client_copy(&self) -> PeerCertificates {
        let data = self.secrets().get("refit-hook-client").await.unwrap().data.unwrap();
        PeerCertificates([CertificateDer::from_pem_slice(&data["tls.crt"].0).unwrap()].into())
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client(), "refit-system")
    }

    async fn secret(&self) -> Secret {
        self.secrets().get("refit-webhook-tls").await.unwrap()
    }

    async fn data(&self, key: &str) -> String {
        let data = self.secret().await.data.unwrap();
        String::from_utf8(data[key].0.clone()).unwrap()
    }

    async fn pass_days(&self, days: u64) {
        tokio::time::advance(Duration::from_secs(days * DAY)).await;
    }

    /// Performs due changes until nothing is due, and returns the number of writes.
    async fn settle(&self) -> u64 {
        let before = self.server.revision();
        for _ in 0..10 {
            let revision = self.server.revision();
            self.keeper().ensure().await;
            if self.server.revision() == revision {
                return revision - before;
            }
        }
        panic!("the keeper never rests");
    }

    async fn authorities(&self) -> usize {
        self.data("ca.crt").await.matches("BEGIN").count()
    }
}

fn pem(text: &str) -> Pem {
    parse_x509_pem(text.as_bytes()).unwrap().1
}

#[tokio::test(start_paused = true)]
async fn all_replicas_serve_the_first_replicas_certificate() {
    let world = World::new().await;
    world.keeper().ensure().await;
    let made = world.secret().await;
    assert_eq!(made.type_.as_deref(), Some("kubernetes.io/tls"));
    world.keeper().ensure().await;
    assert_eq!(world.secret().await.resource_version(), made.resource_version());
    let (leaf, authority) = (pem(&world.data("tls.crt").await), pem(&world.data("ca.crt").await));
    let (leaf, authority) = (leaf.parse_x509().unwrap(), authority.parse_x509().unwrap());
    let names = leaf.subject_alternative_name().unwrap().unwrap().value.general_names.iter();
    let names = names.map(|name| match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        other => panic!("{other}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), CertificateSettings::default().names);
    assert_eq!(leaf.issuer(), authority.subject());
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_early_under_the_same_authority() {
    let world = World::new().await;
    world.settle().await;
    let (ca, leaf) = (world.data("ca.crt").await, world.data("tls.crt").await);
    world.pass_days(59).await;
    assert_eq!(world.settle().await, 0);
    world.pass_days(2).await;
    assert_eq!(world.settle().await, 1);
    assert_ne!(world.data("tls.crt").await, leaf);
    assert_eq!(world.data("ca.crt").await, ca);
}

#[tokio::test(start_paused = true)]
async fn authority_rotation_trusts_both_authorities() {
    let world = World::new().await;
    world.settle().await;
    for _ in 0..21 {
        world.pass_days(75).await;
        world.settle().await;
    }
    let leaf = world.data("tls.crt").await;
    let old = world.data("ca.crt").await;
    world.pass_days(365 * 5 - 180 - 21 * 75).await;
    world.settle().await;
    assert_eq!(world.authorities().await, 2);
    assert!(world.data("ca.crt").await.ends_with(&old));
    // The server never uses a certificate that clients may not trust yet.
    let between = world.data("tls.crt").await;
    tokio::time::advance(Duration::from_mins(61)).await;
    assert_eq!(world.settle().await, 1);
    assert_ne!(world.data("tls.crt").await, between);
    assert_eq!(world.authorities().await, 2);
    tokio::time::advance(Duration::from_mins(61)).await;
    assert_eq!(world.settle().await, 1);
    assert_eq!(world.authorities().await, 1);
    assert_ne!(world.data("ca.crt").await, old);
    assert_ne!(world.data("tls.crt").await, leaf);
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_cert_manager_is_used_and_never_written() {
    let world = World::new().await;
    let now = world.clock.now();
    let validity = Validity {
        from: now - SignedDuration::from_hours(1),
        until: now + SignedDuration::from_hours(1),
    };
    let authority = Authority::new("theirs", validity).unwrap();
    let leaf = authority.server(&["anything"], validity).unwrap();
    let body = json!({
        "metadata": {"name": "refit-webhook-tls",
                     "annotations": {"cert-manager.io/certificate-name": "refit-webhook"}},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem,
                       "ca.crt": authority.material().cert_pem},
    });
    let api = world.secrets();
    let body = serde_json::from_value(body).unwrap();
    api.create(&PostParams::default(), &body).await.unwrap();
    world.keeper().ensure().await;
    world.pass_days(400).await;
    assert_eq!(world.settle().await, 0);
}

#[tokio::test(start_paused = true)]
async fn unusable_parts_are_recreated_and_the_rest_stays() {
    let world = World::new().await;
    world.settle().await;
    let ca = world.data("ca.crt").await;
    for key in ["tls.crt", "tls.key", "ca.crt"] {
        assert_eq!(world.data("ca.crt").await, ca);
        let patch = json!({"data": {key: "bm90aGluZw=="}});
        let api = world.secrets();
        api.patch("refit-webhook-tls", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
        assert_eq!(world.settle().await, 1, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_the_client_certificate_is_accepted_until_it_expires() {
    let world = World::new().await;
    world.settle_clients().await;
    // An operator copies the certificate every two years.
    for _ in 0..20 {
        let copy = world.client_copy().await;
        for _ in 0..2 {
            world.pass_days(365).await;
            let trust = world.settle_clients().await;
            assert_eq!(trust.check(Some(&copy), world.clock.now()), Ok(()));
        }
    }
    let copy = world.client_copy().await;
    world.secrets().delete("refit-hook-client", &<_>::default()).await.unwrap();
    let trust = world.settle_clients().await;
    assert!(trust.check(Some(&copy), world.clock.now()).is_err(), "its authority was deleted");
    let renewed = world.client_copy().await;
    assert_eq!(trust.check(Some(&renewed), world.clock.now()), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_running_replica_accepts_the_clients_of_a_new_authority() {
    let world = World::new().await;
    let trust = world.clients().clients().await;
    let runs = tokio::spawn({
        let (clients, trust) = (world.clients(), trust.clone());
        async move { clients.follow_clients(trust).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let copy = world.client_copy().await;
    assert_eq!(trust.check(Some(&copy), world.clock.now()), Ok(()));
    world.secrets().delete("refit-hook-client", &<_>::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let renewed = world.client_copy().await;
    assert!(trust.check(Some(&copy), world.clock.now()).is_err());
    assert_eq!(trust.check(Some(&renewed), world.clock.now()), Ok(()));
    runs.abort();
}

#[tokio::test(start_paused = true)]
async fn clients_of_another_components_secret_are_accepted_by_their_name() {
    let world = World::new().await;
    let now = world.clock.now();
    let validity = Validity { from: now, until: now + SignedDuration::from_hours(24) };
    let authority = Authority::new("theirs", validity).unwrap();
    let named = |name: &str| authority.client(name, validity).unwrap();
    let body = json!({
        "metadata": {"name": "refit-hook-client",
                     "annotations": {"cert-manager.io/certificate-name": "refit-hook-client"}},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": named("capi").cert_pem, "tls.key": named("capi").key_pem,
                       "ca.crt": authority.material().cert_pem},
    });
    let body = serde_json::from_value(body).unwrap();
    world.secrets().create(&PostParams::default(), &body).await.unwrap();
    let revision = world.server.revision();
    let trust = world.clients().clients().await;
    let check = |material: &KeyAndCert| {
        let der = CertificateDer::from_pem_slice(material.cert_pem.as_bytes()).unwrap();
        trust.check(Some(&PeerCertificates([der].into())), now)
    };
    assert_eq!(check(&named("capi")), Ok(()));
    assert!(matches!(check(&named("other")), Err(ClientRefusal::OtherName { .. })));
    assert_eq!(world.server.revision(), revision);
}

#[tokio::test(start_paused = true)]
async fn a_running_replica_serves_a_renewal_by_another_one() {
    let world = World::new().await;
    let keeper = world.keeper();
    let cert = keeper.ensure().await;
    let before = format!("{cert:?}");
    let runs = tokio::spawn({
        let (keeper, cert) = (keeper.clone(), cert.clone());
        async move { keeper.run(cert).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let api = world.secrets();
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    tokio::time::sleep(Duration::from_secs(61 * DAY)).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_ne!(format!("{cert:?}"), before);
    api.delete("refit-webhook-tls", &<_>::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(api.get_opt("refit-webhook-tls").await.unwrap().is_some());
    runs.abort();
}
