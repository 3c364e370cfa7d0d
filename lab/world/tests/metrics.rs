//! The output of `/metrics` after an upgrade, and whether a scraper can parse it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::common::{NEW, TEST, example, in_world, up, up_with, upgraded};
use kube::api::PostParams;
use lab_world::{
    pki::{PROBE_HOST, PROBE_PORT},
    world::{World, WorldOptions},
};
use refit_kinds::refit::{ClusterUpgrade, ClusterUpgradePlan, ClusterUpgradeSpec};
use refit_runtime::{client::ClientStack, gate::Open, net::Dialer};

async fn scrape(world: &World) -> String {
    let config = kube::Config::new(format!("http://{PROBE_HOST}:{PROBE_PORT}").parse().unwrap());
    let gate = Arc::new(Open);
    let dialer = Dialer::Memory(world.network().clone(), gate.clone());
    let client = ClientStack::new(dialer, gate, TEST).client(&config).unwrap();
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap()
}

/// A sample: name of its series, labels, value.
type Sample = (String, BTreeMap<String, String>, f64);

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let value = match value {
        "+Inf" => f64::INFINITY,
        value => value.parse().unwrap_or_else(|_| panic!("sample without a value: {line}")),
    };
    let Some((name, labels)) = series.split_once('{') else {
        return (series.to_owned(), BTreeMap::new(), value);
    };
    let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("unterminated labels: {line}"));
    let labels = labels.split("\",").filter(|pair| !pair.is_empty());
    let labels = labels.map(|pair| {
        let (key, text) =
            pair.split_once("=\"").unwrap_or_else(|| panic!("label without a value: {line}"));
        (key.to_owned(), text.trim_end_matches('"').to_owned())
    });
    (name.to_owned(), labels.collect(), value)
}

fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|c| c.is_ascii_lowercase())
        && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Parses the text as a scraper does and fails on what Prometheus' own linter rejects.
fn parse(text: &str) -> Vec<Sample> {
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut samples: Vec<Sample> = Vec::new();
    let mut lines = text.lines();
    for line in lines.by_ref() {
        if line == "# EOF" {
            break;
        }
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            match words[0] {
                "HELP" => assert!(helped.insert(words[1]), "duplicate HELP line: {line}"),
                "TYPE" => assert_eq!(types.insert(words[1], words[2]), None, "{line}"),
                "UNIT" => assert!(words[1].ends_with(words[2]), "{line}"),
                _ => panic!("unknown line: {line}"),
            }
            continue;
        }
        let sample = sample(line);
        assert!(seen.insert(line.rsplit_once(' ').unwrap().0.to_owned()), "twice: {line}");
        assert!(is_name(&sample.0), "{line}");
        assert!(sample.1.keys().all(|key| is_name(key)), "{line}");
        let family = types.iter().find(|(name, kind)| {
            let suffixes: &[&str] = match **kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                "info" => &["_info"],
                _ => &[""],
            };
            sample.0.strip_prefix(**name).is_some_and(|rest| suffixes.contains(&rest))
        });
        let (name, _) = family.unwrap_or_else(|| panic!("sample without a family: {line}"));
        assert!(helped.contains(name), "family without a HELP line: {line}");
        assert!(name.starts_with("refit_"), "{line}");
        samples.push(sample);
    }
    assert_eq!(lines.next(), None, "unexpected text after the end");
    samples
}

/// Bucket counts never decrease, and the last one equals the total count.
fn check_histogram(samples: &[Sample], name: &str) {
    let mut buckets: BTreeMap<BTreeMap<String, String>, Vec<f64>> = BTreeMap::new();
    for (series, labels, value) in samples {
        if *series == format!("{name}_bucket") {
            let mut labels = labels.clone();
            assert!(labels.remove("le").is_some());
            buckets.entry(labels).or_default().push(*value);
        }
    }
    assert!(!buckets.is_empty(), "{name}");
    for (labels, counts) in buckets {
        assert!(counts.is_sorted(), "{name} {labels:?}");
        let count = value(samples, &format!("{name}_count"), &labels);
        assert_eq!(counts.last().copied(), count, "{name} {labels:?}");
    }
}

fn value(samples: &[Sample], name: &str, labels: &BTreeMap<String, String>) -> Option<f64> {
    let found = samples.iter().find(|(series, own, _)| series == name && own == labels);
    found.map(|(_, _, value)| *value)
}

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, text)| (key.to_owned(), text.to_owned())).into()
}

/// The names of Refit's series in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c| !is_part(c)).filter(|word| word.starts_with("refit_"));
    words.map(str::to_owned).collect()
}

/// The families that appear only after what a healthy world lacks: errors of requests, and calls of Updaters.
const RARE: [&str; 2] = ["refit_reconcile_errors_total", "refit_updater_call_duration_seconds"];

#[test]
fn every_metric_of_the_alerts_and_the_dashboard_exists() {
    in_world(async {
        let options = WorldOptions { receivers: true, ..WorldOptions::new(example()) };
        let world = up_with(options).await;
        let client = world.client(TEST).unwrap();
        let upgrade = ClusterUpgrade::new("edge-1", ClusterUpgradeSpec::to(NEW.parse().unwrap()));
        let api = kube::Api::namespaced(client.clone(), "default");
        api.create(&PostParams::default(), &upgrade).await.unwrap();
        let plan: ClusterUpgradePlan = serde_json::from_value(serde_json::json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "ClusterUpgradePlan", "metadata": {"name": "all"},
            "spec": {"version": NEW, "waves": [{"name": "all"}], "paused": true},
        }))
        .unwrap();
        kube::Api::all(client).create(&PostParams::default(), &plan).await.unwrap();
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        let text = scrape(&world).await;
        let series: BTreeSet<String> = parse(&text).into_iter().map(|(name, ..)| name).collect();
        let family = |name: &str| {
            let suffix =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            suffix.unwrap_or(name).to_owned()
        };
        let documented = named(include_str!("../../../docs/operations.md"));
        for file in [
            include_str!("../../../deploy/monitoring/prometheus_rule.yaml"),
            include_str!("../../../deploy/monitoring/dashboard.json"),
        ] {
            let names = named(file);
            assert!(names.len() > 5, "{names:?}");
            for name in names {
                let is_rare =
                    RARE.contains(&&*family(&name)) && documented.contains(&family(&name));
                assert!(series.contains(&name) || is_rare, "{name} does not exist: {series:#?}");
            }
        }
    });
}

#[test]
fn the_metrics_of_an_upgrade_can_be_scraped() {
    in_world(async {
        let world = up().await;
        world.upgrade(NEW).await.unwrap();
        upgraded(&world, NEW).await;
        let text = scrape(&world).await;
        let samples = parse(&text);
        let of = |name: &str, pairs| value(&samples, name, &pairs);
        let cluster = [("namespace", "default"), ("cluster", "edge-1")];
        let group = [("namespace", "default"), ("group", "kubeadmcontrolplane-edge-1")];
        let agents = [cluster[0], cluster[1], ("state", "fresh")];
        assert_eq!(of("refit_machines", labels([("phase", "Succeeded")])), Some(8.0));
        assert_eq!(of("refit_leader", labels([])), Some(1.0));
        assert_eq!(of("refit_workload_api_up", labels(cluster)), Some(1.0));
        assert_eq!(of("refit_agents", labels(agents)), Some(8.0));
        assert_eq!(of("refit_clusters", labels([("state", "up")])), Some(1.0));
        assert_eq!(of("refit_fleet_agents", labels([("state", "fresh")])), Some(8.0));
        assert_eq!(of("refit_slots_claimed", labels(group)), Some(0.0));
        assert_eq!(of("refit_slots_limit", labels(group)), Some(1.0));
        assert_eq!(of("refit_drain_blocked_seconds", labels(group)), Some(0.0));
        let age = of("refit_agent_report_age_seconds", labels(cluster)).unwrap();
        assert!((0.0..=600.0).contains(&age), "{age}");
        check_histogram(&samples, "refit_hook_duration_seconds");
        check_histogram(&samples, "refit_reconcile_duration_seconds");
        assert!(samples.len() < 500, "{} series", samples.len());
        let documented = include_str!("../../../docs/operations.md");
        for (name, _, _) in &samples {
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            assert!(documented.contains(&format!("`{family}`")), "{family} is not documented");
        }
    });
}
