//! A bridge in the test's own network namespace, and a namespace with an address for each host.

use crate::run;

/// Address of the test itself.
pub const SWITCH: &str = "10.77.0.1";

/// Returns the address of the host with this number, from 1.
pub fn address(number: u8) -> String {
    format!("10.77.0.{}", 10 + u32::from(number))
}

/// Creates the bridge. Call it once per test process.
pub async fn bridge() -> anyhow::Result<()> {
    ip("link set lo up").await?;
    ip("link add br0 type bridge").await?;
    ip(&format!("addr add {SWITCH}/24 dev br0")).await?;
    ip("link set br0 up").await
}

/// Creates the namespace of a host. It persists across reboots.
pub async fn attach(name: &str, address: &str) -> anyhow::Result<()> {
    ip(&format!("netns add {name}")).await?;
    ip(&format!("link add v{name} type veth peer name eth0 netns {name}")).await?;
    ip(&format!("link set v{name} master br0 up")).await?;
    ip(&format!("-n {name} link set lo up")).await?;
    ip(&format!("-n {name} addr add {address}/24 dev eth0")).await?;
    ip(&format!("-n {name} link set eth0 up")).await?;
    ip(&format!("-n {name} route add default via {SWITCH}")).await
}

/// Connects a host to the network or disconnects it.
pub async fn plug(name: &str, plugged: bool) -> anyhow::Result<()> {
    let state = if plugged { "up" } else { "down" };
    ip(&format!("link set v{name} {state}")).await
}

async fn ip(arguments: &str) -> anyhow::Result<()> {
    run("ip", arguments.split_whitespace()).await.map(drop)
}
