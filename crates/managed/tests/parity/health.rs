//! Rows of the health checks.

use refit_openshift::{
    Compat,
    health::{
        Essential, Extended, Looked, NOTICE_BEFORE, NOTICE_UPGRADING, Notice, Reason, Verdict,
        after_upgrade,
        alerts::{firing, query},
        before_upgrade,
        budgets::DvoRead,
        labels,
    },
    upgrade_config::Phase,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use strum::VariantArray as _;

use crate::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 60,
        name: "the query for critical alerts has the ignored namespaces and names",
        test: the_query_for_alerts,
    },
    Row {
        number: 61,
        name: "an operator fails the check if it is degraded or unavailable",
        test: degraded_operators,
    },
    Row {
        number: 62,
        name: "without the gate, alerts and operators block in this order",
        test: without_the_gate,
    },
    Row {
        number: 63,
        name: "with the gate, six checks are reported, and only two block",
        test: with_the_gate,
    },
    Row {
        number: 64,
        name: "cordoned workers are found, but infra nodes and those at work",
        test: cordoned_workers,
    },
    Row {
        number: 65,
        name: "the taints of memory, disk and pid pressure are found on all nodes",
        test: pressure,
    },
    Row { number: 66, name: "budgets that never allow an eviction are found", test: budgets },
    Row {
        number: 67,
        name: "budgets that the deployment-validation-operator reports are found",
        test: reported_budgets,
    },
    Row {
        number: 68,
        name: "healthcheck_failed has four labels and a series for each reason",
        test: reasons,
    },
];

const BOTH: [Compat; 2] = [Compat::Repaired, Compat::Strict];

fn list<T: DeserializeOwned>(items: &[Value]) -> Vec<T> {
    items.iter().map(|item| serde_json::from_value(item.clone()).unwrap()).collect()
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn essential(alerts: &[&str], operators: &[Value]) -> Essential {
    Essential { alerts: Ok(strings(alerts)), operators: Ok(list(operators)) }
}

fn extended() -> Extended {
    Extended {
        can_scale: Some(Ok(true)),
        nodes: Ok(Vec::new()),
        budgets: Ok(Vec::new()),
        dvo: DvoRead::Metrics(String::new()),
    }
}

fn operator(name: &str, type_: &str, status: &str) -> Value {
    let conditions = json!([
        {"type": "Progressing", "status": "True"},
        {"type": type_, "status": status},
    ]);
    json!({"metadata": {"name": name}, "spec": {}, "status": {"conditions": conditions}})
}

/// What a look with the gate finds after a change, in the phase Upgrading.
fn look(compat: Compat, change: impl FnOnce(&mut Extended)) -> Looked {
    let mut extended = extended();
    change(&mut extended);
    before_upgrade(&essential(&[], &[]), Some(&extended), Phase::Upgrading, compat)
}

fn failures(looked: &Looked) -> &str {
    looked.notice.as_ref().map_or("", |notice| &notice.failures)
}

fn is_set(looked: &Looked, reason: Reason) -> bool {
    looked.gauges.contains(&(reason, true))
}

fn the_query_for_alerts() {
    let start = r#"ALERTS{alertstate="firing",severity="critical",namespace=~"^openshift.*|^kube-.*|^default$""#;
    let cases = [
        (&[][..], &[][..], ""),
        (&["openshift-logging"], &[], r#",namespace!="openshift-logging""#),
        (&[], &["A", "B"], r#",alertname!="A",alertname!="B""#),
        (&["x", "y"], &["A"], r#",namespace!="x",namespace!="y",alertname!="A""#),
    ];
    for (namespaces, alerts, end) in cases {
        let query = query(&strings(namespaces), &strings(alerts));
        assert_eq!(query, format!("{start}{end}}}"));
    }
    let sample = |name: &str| json!({"metric": {"alertname": name}, "value": [1.5, "1"]});
    let answer = |result: Value| json!({"status": "success", "data": {"resultType": "vector", "result": result}});
    for compat in BOTH {
        let body = answer(json!([sample("B"), sample("A"), sample("B")])).to_string();
        assert_eq!(firing(200, body.as_bytes(), compat), Ok(strings(&["B", "A"])));
        assert_eq!(firing(200, answer(json!([])).to_string().as_bytes(), compat), Ok(Vec::new()));
        assert!(firing(503, b"<html>", compat).is_err());
        let looked = after_upgrade(&essential(&["B", "A"], &[]), compat);
        let error = "critical alert(s) firing: B, A".to_owned();
        assert_eq!(looked.verdict, Verdict::Error(error));
    }
    let error = br#"{"status": "error", "errorType": "timeout", "error": "query timed out"}"#;
    assert_eq!(firing(503, error, Compat::Strict), Ok(Vec::new()));
    let why = "Prometheus answers with HTTP status 503: query timed out".to_owned();
    assert_eq!(firing(503, error, Compat::Repaired), Err(why));
    assert!(firing(200, error, Compat::Repaired).is_err());
    assert!(firing(200, b"{}", Compat::Repaired).is_err());
}

fn degraded_operators() {
    let cases = [
        ("Degraded", "True", true),
        ("Degraded", "Unknown", false),
        ("Degraded", "False", false),
        ("Available", "False", true),
        ("Available", "Unknown", false),
        ("Available", "True", false),
        ("Upgradeable", "False", false),
    ];
    for (type_, status, fails) in cases {
        let operators = [operator("dns", type_, status), operator("etcd", type_, status)];
        let looked = after_upgrade(&essential(&[], &operators), Compat::Repaired);
        let error = Verdict::Error("degraded operators: dns, etcd".to_owned());
        assert_eq!(looked.verdict, if fails { error } else { Verdict::Passed }, "{type_} {status}");
    }
    let without = [json!({"metadata": {"name": "dns"}, "spec": {}})];
    let looked = after_upgrade(&essential(&[], &without), Compat::Repaired);
    assert_eq!(looked.verdict, Verdict::Passed);
}

fn without_the_gate() {
    let degraded = [operator("dns", "Degraded", "True")];
    let text = str::to_owned;
    for compat in BOTH {
        let look = |essential: &Essential| {
            let looked = before_upgrade(essential, None, Phase::Upgrading, compat);
            assert_eq!(after_upgrade(essential, compat), looked, "the check after it is the same");
            assert_eq!(looked.notice, None);
            looked
        };
        let looked = look(&essential(&["A"], &degraded));
        assert_eq!(looked.verdict, Verdict::Error(text("critical alert(s) firing: A")));
        assert!(!is_set(&looked, Reason::ClusterOperatorsDegraded));
        let looked = look(&essential(&[], &degraded));
        assert_eq!(looked.verdict, Verdict::Error(text("degraded operators: dns")));
        assert!(is_set(&looked, Reason::ClusterOperatorsDegraded));
        let silent = Essential { alerts: Err(text("refused")), operators: Ok(Vec::new()) };
        let error = text("unable to query critical alerts: refused");
        assert_eq!(look(&silent).verdict, Verdict::Error(error));
        let unknown = Essential { alerts: Ok(Vec::new()), operators: Err(text("forbidden")) };
        assert_eq!(look(&unknown).verdict, Verdict::Error(text("forbidden")));
        assert_eq!(look(&essential(&[], &[])).verdict, Verdict::Passed);
    }
}

fn with_the_gate() {
    let degraded = [operator("dns", "Degraded", "True")];
    let all = Extended {
        can_scale: Some(Ok(false)),
        nodes: Ok(list(&[
            node("n1", &["worker"], Some("unschedulable"), ""),
            node("n2", &["worker"], Some("unschedulable"), ""),
            node("n3", &["worker"], Some("disk-pressure"), ""),
        ])),
        budgets: Ok(list(&[budget("shop", &json!({"maxUnavailable": 0}))])),
        dvo: DvoRead::Metrics(String::new()),
    };
    let tokens = "CriticalAlertsHealthcheckFailed,ClusterOperatorsHealthcheckFailed,\
                  CapacityReservationHealthcheckFailed,NodeUnschedulableHealthcheckFailed:(n1,n2),\
                  NodeUnschedulableTaintHealthcheckFailed:(n3),\
                  PDBHealthcheckFailed: [{\"Name\":\"pdb\",\"Namespace\":\"shop\"}]";
    let (_, warnings) = tokens.split_once("ClusterOperatorsHealthcheckFailed,").unwrap();
    let ill = essential(&["A"], &degraded);
    let well = essential(&[], &[]);
    for compat in BOTH {
        let look = |essential: &Essential, extended: &Extended, phase| {
            before_upgrade(essential, Some(extended), phase, compat)
        };
        let notice = |state, failures: &str| Some(Notice { state, failures: failures.to_owned() });

        let looked = look(&ill, &all, Phase::Upgrading);
        assert_eq!(looked.notice, notice(NOTICE_UPGRADING, tokens));
        let why = "critical alert(s) firing: A; degraded operators: dns".to_owned();
        let blocked = match compat {
            Compat::Repaired => Verdict::Error(why),
            Compat::Strict => Verdict::Waits(why),
        };
        assert_eq!(looked.verdict, blocked, "repaired, the condition shows why");

        let looked = look(&well, &all, Phase::Upgrading);
        assert_eq!(looked.notice, notice(NOTICE_UPGRADING, warnings));
        assert_eq!(looked.verdict, Verdict::Passed, "these only warn");

        let looked = look(&well, &all, Phase::New);
        assert_eq!(looked.notice, notice(NOTICE_BEFORE, warnings));
        assert!(matches!(looked.verdict, Verdict::Waits(_)));

        for phase in [Phase::New, Phase::Upgrading] {
            let looked = look(&well, &extended(), phase);
            assert_eq!((looked.notice, looked.verdict), (None, Verdict::Passed));
        }
        let unknown =
            look(&well, &Extended { nodes: Err("gone".to_owned()), ..extended() }, Phase::New);
        let tokens =
            "NodeUnschedulableHealthcheckFailed:(),NodeUnschedulableTaintHealthcheckFailed:()";
        assert_eq!(failures(&unknown), tokens);
        let unneeded = self::look(compat, |extended| extended.can_scale = None);
        assert!(
            unneeded.gauges.iter().all(|one| one.0 != Reason::DefaultWorkerMachinepoolNotFound)
        );
        let unread =
            self::look(compat, |extended| extended.can_scale = Some(Err("gone".to_owned())));
        assert_eq!(failures(&unread), "CapacityReservationHealthcheckFailed");
    }
}

/// A node with these roles, a taint, and a state of the machine-config operator.
fn node(name: &str, roles: &[&str], taint: Option<&str>, state: &str) -> Value {
    let labels: serde_json::Map<String, Value> =
        roles.iter().map(|role| (format!("node-role.kubernetes.io/{role}"), json!(""))).collect();
    let taints: Vec<Value> = taint
        .iter()
        .map(|key| json!({"key": format!("node.kubernetes.io/{key}"), "effect": "NoSchedule"}))
        .collect();
    let annotations = json!({"machineconfiguration.openshift.io/state": state});
    json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"unschedulable": taint == Some("unschedulable"), "taints": taints},
    })
}

fn cordoned_workers() {
    let cordon = Some("unschedulable");
    let mut without_taint = node("n", &["worker"], None, "Done");
    without_taint["spec"]["unschedulable"] = json!(true);
    let mut not_yet = node("n", &["worker"], cordon, "Done");
    not_yet["spec"]["unschedulable"] = json!(false);
    let mut executes = node("n", &["worker"], cordon, "Done");
    executes["spec"]["taints"][0]["effect"] = json!("NoExecute");
    let cases = [
        (node("n", &["worker"], cordon, "Done"), true),
        (node("n", &["worker"], cordon, ""), true),
        (node("n", &["worker"], cordon, "Working"), false),
        (node("n", &["worker", "infra"], cordon, "Done"), false),
        (node("n", &["master"], cordon, "Done"), false),
        (node("n", &["worker"], None, "Done"), false),
        (without_taint, false),
        (not_yet, false),
        (executes, false),
    ];
    for (node, fails) in cases {
        let looked = look(Compat::Repaired, |extended| {
            extended.nodes = Ok(list(std::slice::from_ref(&node)));
        });
        assert_eq!(is_set(&looked, Reason::ClusterNodeManuallyCordoned), fails, "{node}");
        let token = "NodeUnschedulableHealthcheckFailed:(n)";
        assert_eq!(failures(&looked), if fails { token } else { "" });
    }
}

fn pressure() {
    let cases = [
        ("memory-pressure", true),
        ("disk-pressure", true),
        ("pid-pressure", true),
        ("network-unavailable", false),
    ];
    for (taint, fails) in cases {
        let nodes = [node("m", &["master"], Some(taint), ""), node("w", &["worker"], None, "")];
        let looked = look(Compat::Repaired, |extended| extended.nodes = Ok(list(&nodes)));
        assert_eq!(is_set(&looked, Reason::ClusterNodeTaintUnschedulable), fails, "{taint}");
        let token = "NodeUnschedulableTaintHealthcheckFailed:(m)";
        assert_eq!(failures(&looked), if fails { token } else { "" });
    }
    let mut both = node("b", &["worker"], Some("disk-pressure"), "");
    let taint = json!({"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"});
    both["spec"]["taints"].as_array_mut().unwrap().push(taint);
    let nodes = [node("d", &["worker"], Some("disk-pressure"), ""), both];
    let looked = look(Compat::Repaired, |extended| extended.nodes = Ok(list(&nodes)));
    assert_eq!(failures(&looked), "NodeUnschedulableTaintHealthcheckFailed:(b,d,b)");
}

fn budget(namespace: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": "pdb", "namespace": namespace}, "spec": spec})
}

fn budgets() {
    let cases = [
        (json!({"maxUnavailable": 0}), true),
        (json!({"maxUnavailable": "0%"}), true),
        (json!({"maxUnavailable": 1}), false),
        (json!({"maxUnavailable": "10%"}), false),
        (json!({"minAvailable": "100%"}), true),
        (json!({"minAvailable": "50%"}), false),
        (json!({"minAvailable": 100}), false),
        (json!({}), false),
    ];
    for compat in BOTH {
        for (spec, fails) in &cases {
            let budgets = [budget("openshift-logging", spec)];
            let looked = look(compat, |extended| extended.budgets = Ok(list(&budgets)));
            assert_eq!(is_set(&looked, Reason::ClusterInvalidPdbConfiguration), *fails, "{spec}");
            let token = r#"PDBHealthcheckFailed: [{"Name":"pdb","Namespace":"openshift-logging"}]"#;
            assert_eq!(failures(&looked), if *fails { token } else { "" });
        }
        let looked = look(compat, |extended| extended.budgets = Err("forbidden".to_owned()));
        assert!(is_set(&looked, Reason::PdbQueryFailed));
        assert_eq!(failures(&looked), "PDBHealthcheckFailed: []");
    }
    let never = json!({"maxUnavailable": 0});
    let all =
        ["openshift-etcd", "shop", "openshift-cnv"].map(|namespace| budget(namespace, &never));
    let named = |compat, count| {
        let looked = look(compat, |extended| extended.budgets = Ok(list(&all[..count])));
        failures(&looked).to_owned()
    };
    let first = r#"PDBHealthcheckFailed: [{"Name":"pdb","Namespace":"openshift-etcd"}]"#;
    assert_eq!(named(Compat::Strict, 3), first, "the original examines OpenShift's namespaces");
    assert_eq!(named(Compat::Repaired, 1), "");
    let both = r#"PDBHealthcheckFailed: [{"Name":"pdb","Namespace":"shop"},{"Name":"pdb","Namespace":"openshift-cnv"}]"#;
    assert_eq!(named(Compat::Repaired, 3), both);
}

fn reported_budgets() {
    let series = |name: &str| format!("deployment_validation_operator_{name}{{name=\"x\"}} 1\n");
    let help = "# HELP deployment_validation_operator_pdb_min_available Budgets\n".to_owned();
    let text = str::to_owned;
    let failed = Some(Reason::DvoMetricsQueryFailed);
    let invalid = Some(Reason::ClusterInvalidPdb);
    let cases = [
        (DvoRead::Metrics(series("pdb_min_available")), invalid, invalid),
        (DvoRead::Metrics(series("pdb_max_unavailable")), invalid, None),
        (DvoRead::Metrics(series("pdb_max_available")), None, invalid),
        (DvoRead::Metrics(series("host_ipc")), None, None),
        (DvoRead::Metrics(help), None, invalid),
        (DvoRead::Metrics(String::new()), None, None),
        (DvoRead::Failed(text("refused")), failed, failed),
        (DvoRead::Absent(text("gone")), None, Some(Reason::DvoClientCreationFailed)),
        (DvoRead::WithoutClient, None, None),
    ];
    for (dvo, repaired, strict) in cases {
        for (compat, reason) in [(Compat::Repaired, repaired), (Compat::Strict, strict)] {
            let looked = look(compat, |extended| extended.dvo = dvo.clone());
            let set = looked.gauges.iter().filter(|gauge| gauge.1).map(|gauge| gauge.0);
            assert_eq!(set.collect::<Vec<_>>(), Vec::from_iter(reason), "{compat} {dvo:?}");
            let token = if reason.is_some() { "PDBHealthcheckFailed: []" } else { "" };
            assert_eq!(failures(&looked), token);
            let fails = compat == Compat::Strict && dvo == DvoRead::WithoutClient;
            assert_eq!(matches!(looked.verdict, Verdict::Error(_)), fails, "an error of ARO");
        }
    }
    let never = list(&[budget("shop", &json!({"maxUnavailable": 0}))]);
    let looked = look(Compat::Strict, |extended| {
        (extended.budgets, extended.dvo) = (Ok(never), DvoRead::WithoutClient);
    });
    assert_eq!(looked.verdict, Verdict::Passed, "the operator is not asked after a finding");
}

fn reasons() {
    let names = Reason::VARIANTS.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(
        names,
        "healthcheck_query_failed critical_alerts_firing cluster_operators_degraded \
         cluster_operator_status_failed default_worker_machinepool_not_found \
         cluster_node_query_failed cluster_node_manually_cordoned cluster_node_taint_unschedulable \
         cluster_invalid_pdb cluster_invalid_pdb_configuration pdb_query_failed \
         dvo_client_creation_failed dvo_metrics_query_failed"
    );
    let of = |version| {
        labels("u", Phase::Upgrading, version, Reason::PdbQueryFailed)
            .map(|(name, value)| format!("{name}={value}"))
            .join(",")
    };
    let known = "upgradeconfig_name=u,state=Upgrading,version=4.16.3,reason=pdb_query_failed";
    assert_eq!(of(Some("4.16.3")), known);
    assert_eq!(of(None), known.replace("4.16.3", "unknown"));

    let cleared = |looked: Looked| {
        let gauges = looked.gauges.iter().filter(|gauge| !gauge.1);
        gauges.map(|gauge| gauge.0).collect::<std::collections::BTreeSet<_>>()
    };
    let healthy = cleared(look(Compat::Repaired, |_| {}));
    assert_eq!(healthy, Reason::VARIANTS.iter().copied().collect());
    let missed = &healthy - &cleared(look(Compat::Strict, |_| {}));
    let of_budgets = [
        Reason::ClusterInvalidPdbConfiguration,
        Reason::PdbQueryFailed,
        Reason::DvoClientCreationFailed,
        Reason::DvoMetricsQueryFailed,
    ];
    assert_eq!(missed, of_budgets.into(), "the original never clears these");
    let firing = essential(&["A"], &[]);
    let fired = (Reason::CriticalAlertsFiring, true);
    assert_eq!(after_upgrade(&firing, Compat::Strict).gauges, [fired]);
    let gauges = [(Reason::HealthcheckQueryFailed, false), fired];
    assert_eq!(after_upgrade(&firing, Compat::Repaired).gauges, gauges);
}
