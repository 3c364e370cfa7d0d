//! Version graphs: rows 43 and 44.

use std::time::Duration;

use lab_openshift::{
    cincinnati::{Cincinnati, PATH},
    wire::Trouble,
};
use refit_openshift::{
    Compat,
    validation::{DEFAULT_UPSTREAM, GraphRequest},
};

use crate::bed::Bed;

fn request(url: &str, channel: &str) -> GraphRequest {
    GraphRequest {
        url: url.to_owned(),
        architecture: "arm64".to_owned(),
        channel: channel.to_owned(),
        version: "4.16.3".to_owned(),
        cluster_id: "id".to_owned(),
    }
}

fn graph() -> Cincinnati {
    let graph = Cincinnati::default();
    graph.offer("stable-4.17", "4.16.3", "4.17.1");
    graph.offer("stable-4.17", "4.16.2", "4.17.0");
    graph.offer_with_risk("stable-4.17", "4.16.3", "4.17.2", "SlowPods");
    graph
}

#[tokio::test(start_paused = true)]
async fn updates_with_and_without_risks_are_offered() {
    let (bed, graph) = (Bed::new().await, graph());
    bed.serve_tls(graph.clone(), "api.openshift.com");
    let remote = bed.remote(Compat::Repaired);
    let offered = remote.graph(&request(DEFAULT_UPSTREAM, "stable-4.17")).await.unwrap();
    assert_eq!(offered, ["4.17.1", "4.17.2"]);
    let query = "arch=arm64&channel=stable-4.17&id=id&version=4.16.3";
    assert_eq!(graph.troubles().asked(), [format!("GET {PATH}?{query}")]);
    graph.withdraw("stable-4.17", "4.16.3", "4.17.1");
    let offered = remote.graph(&request(DEFAULT_UPSTREAM, "stable-4.17")).await.unwrap();
    assert_eq!(offered, ["4.17.2"]);
}

#[tokio::test(start_paused = true)]
async fn the_upstream_of_the_cluster_is_asked_instead() {
    let (bed, own) = (Bed::new().await, graph());
    bed.serve(own.clone(), "graph.example", 8080);
    let url = format!("http://graph.example:8080{PATH}?a=b");
    let remote = bed.remote(Compat::Repaired);
    assert_eq!(remote.graph(&request(&url, "stable-4.17")).await.unwrap().len(), 2);
    let query = "a=b&arch=arm64&channel=stable-4.17&id=id&version=4.16.3";
    assert_eq!(own.troubles().asked(), [format!("GET {PATH}?{query}")]);
}

#[tokio::test(start_paused = true)]
async fn a_graph_that_cannot_be_read_is_an_error_with_its_url() {
    let (bed, own) = (Bed::new().await, graph());
    bed.serve(own.clone(), "graph.example", 80);
    let remote = bed.remote(Compat::Repaired);
    let ask = async |channel: &str| {
        let url = format!("http://graph.example{PATH}");
        remote.graph(&request(&url, channel)).await.unwrap_err()
    };
    let error = ask("unknown").await;
    assert!(error.contains("does not have the current version 4.16.3"), "{error}");
    assert!(error.starts_with("cannot read the version graph http://graph.example/"), "{error}");
    assert!(ask("").await.contains("HTTP status 400"));
    own.troubles().queue([
        Trouble::Status(502),
        Trouble::Lost,
        Trouble::Slow(Duration::from_mins(1)),
    ]);
    assert!(ask("stable-4.17").await.contains("HTTP status 502"));
    ask("stable-4.17").await;
    assert!(ask("stable-4.17").await.contains("no answer within 30 s"));
    bed.network.close("graph.example", 80);
}
