mod common;
use common::{World, config_map};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
#[tokio::test(start_paused = true)]
async fn perf() {
    let world = World::new();
    let api = world.configs().await;
    api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let t = std::time::Instant::now();
    for _ in 0..5000 { api.get("a").await.unwrap(); }
    println!("get {:?} per s", 5000.0 / t.elapsed().as_secs_f64());
    let t = std::time::Instant::now();
    for n in 0..5000 {
        let patch = Patch::Merge(json!({"data": {"value": n.to_string()}}));
        api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    }
    println!("patch {:?} per s", 5000.0 / t.elapsed().as_secs_f64());
    let direct = world.direct();
    let t = std::time::Instant::now();
    for _ in 0..5000 { direct.get("a").await.unwrap(); }
    println!("direct get {:?} per s", 5000.0 / t.elapsed().as_secs_f64());
    let t = std::time::Instant::now();
    for _ in 0..200 { world.client().await.apiserver_version().await.unwrap(); }
    println!("new client + handshake + get {:?} per s; handshakes {}", 200.0 / t.elapsed().as_secs_f64(), world.handshakes());
}
