//! Servers of the lab on the network of a bed.

use lab_openshift::{
    ocm::{Managed, Ocm},
    site::from_any_thread,
    wire::{self, Answers},
};
use refit_openshift::provider::OcmUrl;

use crate::bed::{Bed, CLUSTER_ID, TOKEN};

impl Bed {
    /// Serves a server of the lab at `http://HOST:PORT`.
    pub(crate) fn serve(&self, server: impl Answers, host: &str, port: u16) {
        let listener = self.network.listen(host, port);
        tokio::spawn(wire::serve(server, listener, None, from_any_thread(self.clock)));
    }

    /// Serves a server of the lab at `https://HOST`.
    pub(crate) fn serve_tls(&self, server: impl Answers, host: &str) {
        let listener = self.network.listen(host, 443);
        tokio::spawn(wire::serve(
            server,
            listener,
            Some(self.tls(host)),
            from_any_thread(self.clock),
        ));
    }
}

/// OCM with the cluster of a bed.
pub(crate) fn ocm() -> Ocm {
    Ocm::new(Managed {
        id: "1a2b".to_owned(),
        external_id: CLUSTER_ID.to_owned(),
        token: TOKEN.to_owned(),
        channel_group: "stable".to_owned(),
        grace_minutes: 60,
    })
}

pub(crate) fn ocm_url(text: &str) -> OcmUrl {
    OcmUrl::parse(text).unwrap()
}
