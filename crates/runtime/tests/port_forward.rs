//! Port-forwards through the client stack, to an API server behind TLS, on a paused clock.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::common::{Switch, World, hangs};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use lab_apiserver::{Down, FaultAction, FaultRule};
use refit_runtime::{
    gate::Open,
    port_forward::{PortForwardError, port_forward},
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

const MANY: usize = 5_000_000;

/// A world with a pod whose port 2380 passes the far end of each stream to `serve`.
async fn world_with_pod(serve: impl Fn(DuplexStream) + Send + Sync + 'static) -> World {
    let world = World::new();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n1"},
    }))
    .unwrap();
    pods(&world).create(&PostParams::default(), &pod).await.unwrap();
    world.server.serve_ports(Box::new(move |_, port| {
        (port == 2380).then(|| {
            let (near, far) = tokio::io::duplex(1000);
            serve(far);
            near
        })
    }));
    world
}

fn pods(world: &World) -> Api<Pod> {
    Api::namespaced(Client::new(world.server.clone(), "default"), "default")
}

fn echo(stream: DuplexStream) {
    tokio::spawn(async move {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    });
}

fn cause(error: &io::Error) -> &PortForwardError {
    error.get_ref().and_then(|inner| inner.downcast_ref()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn many_bytes_pass_in_both_directions_at_once() {
    let world = world_with_pod(echo).await;
    let stack = world.stack(Arc::new(Open)).with_max_answer(1000);
    let client = stack.client(&world.config().await).unwrap();
    let stream = port_forward(&client, "default", "p", 2380).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent: Vec<u8> = (0..MANY).map(|n| n.to_le_bytes()[0]).collect();
    let mut received = vec![0; MANY];
    let send = async {
        writer.write_all(&sent).await.unwrap();
        writer.flush().await.unwrap();
    };
    let (read, ()) = tokio::join!(reader.read_exact(&mut received), send);
    read.unwrap();
    assert!(received == sent);
}

#[tokio::test(start_paused = true)]
async fn a_silent_port_forward_outlives_the_deadlines_of_calls() {
    let world = world_with_pod(echo).await;
    let mut stream = port_forward(&world.client().await, "default", "p", 2380).await.unwrap();
    for _ in 0..3 {
        assert!(hangs(stream.read_u8()).await);
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_port_is_an_error_with_the_text_of_the_node() {
    let world = world_with_pod(echo).await;
    let mut stream = port_forward(&world.client().await, "default", "p", 80).await.unwrap();
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(matches!(cause(&error), PortForwardError::Node { .. }));
    let text = error.to_string();
    assert!(
        text.starts_with("port 80 of pod default/p cannot be reached: error forwarding port 80")
    );
    assert!(text.ends_with("connection refused"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_pod_is_an_error_of_the_api() {
    let world = world_with_pod(echo).await;
    let error = port_forward(&world.client().await, "default", "q", 2380).await.unwrap_err();
    let PortForwardError::Connect { source, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(&**source, kube::Error::Api(status) if status.code == 404), "{source}");
    let text = "cannot forward port 2380 of pod default/q: pods \"q\" not found";
    assert_eq!(error.to_string(), text);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_port_forward_names_the_verbs_that_it_needs() {
    let world = world_with_pod(echo).await;
    world.server.faults().add(FaultRule::next(FaultAction::Status(403)).subresource("portforward"));
    let error = port_forward(&world.client().await, "default", "p", 2380).await.unwrap_err();
    let text = error.to_string();
    assert!(text.ends_with(" (get and create of pods/portforward are required)"), "{text}");
    assert!(!text.contains("Status {"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_has_ten_seconds() {
    let world = world_with_pod(echo).await;
    let client = world.client().await;
    for (seconds, wanted) in [(9, true), (11, false)] {
        let delay = FaultAction::Delay(Duration::from_secs(seconds));
        world.server.faults().add(FaultRule::next(delay).subresource("portforward"));
        let outcome = port_forward(&client, "default", "p", 2380).await;
        assert_eq!(outcome.is_ok(), wanted);
        let error = outcome.err().map(|error| error.to_string());
        let late = "cannot forward port 2380 of pod default/p: no answer within 10 s";
        assert_eq!(error.as_deref(), (!wanted).then_some(late));
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_or_shutting_down_the_stream_ends_it_at_the_pod() {
    for shut_down in [false, true] {
        let far: Arc<Mutex<Option<DuplexStream>>> = Arc::default();
        let slot = far.clone();
        let world = world_with_pod(move |stream| *slot.lock().unwrap() = Some(stream)).await;
        let mut stream = port_forward(&world.client().await, "default", "p", 2380).await.unwrap();
        let mut far = far.lock().unwrap().take().unwrap();
        assert!(hangs(far.read_u8()).await);
        if shut_down {
            stream.shutdown().await.unwrap();
        } else {
            drop(stream);
        }
        assert!(!hangs(far.read_u8()).await);
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_port_is_the_end_of_the_stream() {
    let world = world_with_pod(|mut stream| {
        tokio::spawn(async move { stream.write_all(b"bye").await });
    })
    .await;
    let mut stream = port_forward(&world.client().await, "default", "p", 2380).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "bye");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_goes_down_is_an_error_and_not_an_end() {
    let world = world_with_pod(echo).await;
    let mut stream = port_forward(&world.client().await, "default", "p", 2380).await.unwrap();
    world.server.faults().set_down(Some(Down::Refuse));
    let error = stream.read_u8().await.unwrap_err();
    assert!(matches!(cause(&error), PortForwardError::Broken { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_breaks_its_port_forwards() {
    let world = world_with_pod(echo).await;
    let mut stream = port_forward(&world.client().await, "default", "p", 2380).await.unwrap();
    let now = DeleteParams::default().grace_period(0);
    pods(&world).delete("p", &now).await.unwrap();
    assert!(stream.read_u8().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_dead_process_reads_and_writes_nothing() {
    let far: Arc<Mutex<Option<DuplexStream>>> = Arc::default();
    let slot = far.clone();
    let world = world_with_pod(move |stream| *slot.lock().unwrap() = Some(stream)).await;
    let switch = Arc::new(Switch::default());
    let client = world.client_of(switch.clone()).await;
    let mut stream = port_forward(&client, "default", "p", 2380).await.unwrap();
    let mut far = far.lock().unwrap().take().unwrap();
    switch.kill();
    far.write_all(b"x").await.unwrap();
    assert!(stream.read_u8().await.is_err());
    let _ = stream.write_all(b"y").await;
    let _ = stream.flush().await;
    drop(stream);
    assert!(far.read_u8().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_port_forward_survives_a_connection_that_the_api_server_has_just_closed() {
    let world = world_with_pod(echo).await;
    let client = world.client().await;
    let breaks = || FaultRule::next(FaultAction::Refuse).subresource("portforward");
    world.server.faults().add(breaks());
    assert!(port_forward(&client, "default", "p", 2380).await.is_ok());

    world.server.faults().add(breaks().times(2));
    let error = port_forward(&client, "default", "p", 2380).await.unwrap_err();
    assert!(matches!(error, PortForwardError::Connect { .. }), "{error}");
}
