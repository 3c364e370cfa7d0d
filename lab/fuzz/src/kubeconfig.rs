use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use futures::FutureExt as _;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::config::Kubeconfig;
use refit_runtime::{
    ObjectKey,
    client::ClientStack,
    gate::Open,
    net::{Dialer, MemoryNetwork},
    tls,
    workload::config_of,
};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Shorter credentials may occur in any text.
const SECRET_CHARACTERS: usize = 8;
/// Members of a user that are credentials.
const CREDENTIALS: [&str; 4] = ["token", "password", "client-key-data", "client-certificate-data"];

/// Members of a user that are not in the file itself.
const REACHING: [&str; 5] =
    ["exec", "auth-provider", "tokenFile", "client-key", "client-certificate"];

/// Clients spawn a task.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tls::install_provider();
    let builder = &mut tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime without threads")
});

/// Builds a client from the kubeconfig Secret of a workload cluster, as the controller does.
pub fn kubeconfig(input: &[u8]) {
    let key = ObjectKey::new("default", "edge-1-kubeconfig");
    let data = BTreeMap::from([("value".to_owned(), ByteString(input.to_vec()))]);
    let secret = Secret { data: Some(data), ..Secret::default() };
    let config = config_of(&key, &secret).now_or_never().expect("no program and no file is used");
    let error = match config {
        Ok(_) if reaches_out(input) => panic!("a program would run, or a file be read"),
        Err(error) => error.to_string(),
        Ok(config) => {
            let network = Dialer::Memory(MemoryNetwork::default(), Arc::new(Open));
            let stack = ClientStack::new(network, Arc::new(Open), "refit-fuzz");
            match RUNTIME.block_on(async { stack.client(&config) }) {
                Err(error) => error.to_string(),
                Ok(_) => return,
            }
        }
    };
    assert!(!error.is_empty());
    for credential in credentials(input) {
        assert!(!error.contains(&credential), "the error shows a credential: {error}");
    }
}

/// Whether a kubeconfig names a program to run or a file to read.
fn reaches_out(input: &[u8]) -> bool {
    let kubeconfig = Kubeconfig::from_yaml(&String::from_utf8_lossy(input));
    let value = kubeconfig.ok().and_then(|kubeconfig| serde_json::to_value(kubeconfig).ok());
    let any = |list: &str, one: &str, members: &[&str]| {
        let all = value.iter().filter_map(|value| value[list].as_array()).flatten();
        all.flat_map(|each| members.iter().map(|member| &each[one][*member]))
            .any(|member| !member.is_null())
    };
    any("clusters", "cluster", &["certificate-authority"]) || any("users", "user", &REACHING)
}

/// The credentials of a kubeconfig that can be parsed; otherwise its lines, whatever they are.
fn credentials(input: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(input);
    let long = |text: &&str| text.chars().count() >= SECRET_CHARACTERS;
    let Ok(kubeconfig) = Kubeconfig::from_yaml(&text) else {
        return text.lines().filter(long).map(str::to_owned).collect();
    };
    let printed = serde_json::to_value(&kubeconfig).expect("a kubeconfig can be printed");
    let users = printed["users"].as_array().into_iter().flatten();
    let found: Vec<String> = users
        .flat_map(|user| CREDENTIALS.map(|member| user["user"][member].clone()))
        .filter_map(|value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
        .filter(|text| long(&text.as_str()))
        .collect();
    // An error may name a context, cluster or user, and an input may call it like a credential.
    let mut rest = printed;
    for user in rest["users"].as_array_mut().into_iter().flatten() {
        user["user"] = Value::Null;
    }
    let rest = rest.to_string();
    found.into_iter().filter(|text| !rest.contains(text.as_str())).collect()
}
