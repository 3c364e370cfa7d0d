//! The world's Alertmanager, and how it is reached.

pub(crate) use lab_openshift::alertmanager::Alertmanager;

/// Its host name.
pub(crate) const HOST: &str = "alertmanager.monitoring.svc";
/// Its port.
pub(crate) const PORT: u16 = 9093;

/// How the controller reaches it.
pub(crate) fn config() -> kube::Config {
    let url = format!("http://{HOST}:{PORT}");
    kube::Config::new(url.parse().expect("it is a constant URL"))
}
