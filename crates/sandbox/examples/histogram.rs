//! tmp
#![allow(clippy::all, clippy::pedantic, clippy::print_stdout)]
use std::collections::BTreeMap;
fn main() {
    let m = refit_sandbox::manifests::load(&["examples/cluster.yaml"])
        .unwrap()
        .into_iter()
        .map(|m| m.object)
        .collect::<Vec<_>>();
    let r = refit_sandbox::sweep::record(&m).unwrap();
    let mut h: BTreeMap<String, usize> = BTreeMap::new();
    for p in r.points().iter().step_by(2) {
        let mut parts: Vec<String> = p
            .effect
            .to_string()
            .split('/')
            .map(|s| s.to_owned())
            .collect();
        for s in &mut parts {
            if s.contains("edge-1") || s.starts_with("web-") {
                *s = "X".into();
            }
        }
        let actor = if p.actor.to_string().starts_with("agent") {
            "agent".into()
        } else {
            p.actor.to_string()
        };
        let mut e = parts.join("/");
        if e.starts_with("host") {
            e = e.split(' ').last().unwrap().to_owned();
        }
        *h.entry(format!("{actor} {e}")).or_default() += 1;
    }
    let mut v: Vec<_> = h.into_iter().collect();
    v.sort_by_key(|x| std::cmp::Reverse(x.1));
    for (k, n) in v {
        println!("{n:5} {k}");
    }
}
