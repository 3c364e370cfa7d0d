use refit_kinds::refit::{RebootChoice, UpdaterHost};
use serde_json::json;

use super::*;

fn claims(paths: &[&str]) -> Vec<Claim> {
    let paths = paths.iter().map(|path| path.parse().unwrap()).collect();
    vec![Claim { group: "g".into(), kind: "M".into(), paths }]
}

fn host(value: Value) -> UpdaterHost {
    serde_json::from_value(value).unwrap()
}

/// Both paths, as they are in a machine's objects of this spec.
fn packages(spec: &Value) -> Result<Option<HostPart>, String> {
    let host = host(json!({"osPackages": {
        "installFrom": "/spec/packages", "securityFrom": "/spec/level", "exclude": ["mdadm"], "reboot": "Never",
    }}));
    let claims = claims(&["/spec/packages/**", "/spec/level"]);
    let other = json!({"apiVersion": "other/v1", "kind": "M", "spec": {"level": "no"}});
    let of = |level: Level, kind: &str, spec: Value| {
        let infrastructure = json!({"apiVersion": "g/v1", "kind": kind, "spec": spec});
        let objects = Objects { owner: other.clone(), infrastructure, bootstrap: None };
        host_part("patches", &host, &claims, (level, &objects)).map_err(|why| why.to_string())
    };
    let found = of(Level::Machine, "M", spec.clone());
    // A template has the same fields one level deeper.
    assert_eq!(of(Level::MachineSet, "MTemplate", json!({"template": {"spec": spec}})), found);
    found
}

/// Names with versions, and whether all security updates are installed.
type Asked<'a> = (&'a [(&'a str, &'a str)], bool);

#[test]
fn packages_are_a_list_or_an_object_and_a_level_asks_for_security_updates() {
    let vim = json!([{"name": "vim", "version": "9.*"}]);
    let both = json!({"vim": "9.*", "chrony": "4.5-1"});
    let table: [(Value, Option<Asked<'_>>); 9] = [
        (json!({}), None),
        (json!({"packages": null, "level": null}), None),
        (json!({"packages": [], "level": ""}), None),
        (json!({"packages": {}}), None),
        (json!({"packages": vim}), Some((&[("vim", "9.*")], false))),
        (json!({"packages": both}), Some((&[("chrony", "4.5-1"), ("vim", "9.*")], false))),
        (json!({"level": "2026-11-01"}), Some((&[], true))),
        (json!({"level": 0, "packages": []}), Some((&[], true))),
        (json!({"level": 7, "packages": vim}), Some((&[("vim", "9.*")], true))),
    ];
    for (spec, wanted) in table {
        let wanted = wanted.map(|(install, security)| {
            let package = |(name, version): &(&str, &str)| OsPackage {
                name: (*name).to_owned(),
                version: (*version).to_owned(),
            };
            HostPart::OsPackages(OsPackageArgs {
                install: install.iter().map(package).collect(),
                security,
                exclude: vec!["mdadm".into()],
                reboot: RebootChoice::Never,
            })
        });
        assert_eq!(packages(&spec), Ok(wanted), "{spec}");
    }
}

#[test]
fn a_value_that_is_no_package_is_refused_with_its_path_and_a_remedy() {
    let at =
        |path: &str, what: &str| format!("Updater patches needs {path} in M, and it is {what}");
    let list = |list: Value| json!({ "packages": list });
    let named =
        |name: &str| list(json!([{"name": "vim", "version": "*"}, {"name": name, "version": "1"}]));
    let many: Vec<Value> =
        (0..65).map(|n| json!({"name": format!("p{n}"), "version": "*"})).collect();
    for (spec, path, what) in [
        (list(json!("vim")), "/spec/packages", "neither a list of packages"),
        (list(json!(1)), "/spec/packages", "neither a list of packages"),
        (
            named("-y"),
            "/spec/packages/1",
            "not a package to install: \"-y\" is not a name: a name has",
        ),
        (
            named("vim;reboot"),
            "/spec/packages/1",
            "not a package to install: \"vim;reboot\" is not a name",
        ),
        (named("vim"), "/spec/packages", "a list with vim twice: name it once"),
        (
            named("kubelet"),
            "/spec/packages",
            "a list with kubelet, which keeps its version: remove it",
        ),
        (named("mdadm"), "/spec/packages", "a list with mdadm, which keeps its version: remove it"),
        (list(json!(["vim"])), "/spec/packages/0", "not a package to install: it has no name"),
        (
            list(json!([{"version": "1"}])),
            "/spec/packages/0",
            "not a package to install: it has no name",
        ),
        (
            list(json!([{"name": "vim"}])),
            "/spec/packages/0",
            "not a package to install: vim has no version: * is the newest one",
        ),
        (
            list(json!([{"name": "vim", "version": "*", "arch": "arm64"}])),
            "/spec/packages/0",
            "not a package to install: it has arch, and a package has name and version, and nothing else",
        ),
        (
            list(json!({"vim": 9.1})),
            "/spec/packages/vim",
            "not a package to install: the version of vim is not a text: write it in quotation marks",
        ),
        (
            list(json!({"vim": "9 --force"})),
            "/spec/packages/vim",
            "not a package to install: \"9 --force\"",
        ),
        (list(json!(many)), "/spec/packages", "65 packages: name at most 64"),
        (json!({"level": true}), "/spec/level", "neither a text nor a number"),
        (json!({"level": {"date": "2026-11-01"}}), "/spec/level", "neither a text nor a number"),
    ] {
        let refused = packages(&spec).unwrap_err();
        assert!(refused.starts_with(&at(path, what)), "{spec}: {refused}");
    }
}

#[test]
fn packages_are_claimed_exactly_and_an_image_by_any_path_that_names_it() {
    let image =
        host(json!({"osImage": {"urlFrom": "/spec/image/url", "checksumFrom": "/spec/image/sum"}}));
    let install = host(json!({"osPackages": {"installFrom": "/spec/packages"}}));
    let both = host(
        json!({"osPackages": {"installFrom": "/spec/packages", "securityFrom": "/spec/level"}}),
    );
    for (host, claimed, unused, unclaimed) in [
        (&image, &["/spec/image/**"][..], None, None),
        (&image, &["/spec/image/url"], None, Some("/spec/image/sum")),
        (&image, &["/spec/**", "/spec/other/size"], Some("/spec/other/size"), None),
        (&install, &["/spec/packages/**"], None, None),
        (&install, &["/spec/packages"], Some("/spec/packages"), Some("/spec/packages/**")),
        // A typing error in the path of the argument would be one of these.
        (&install, &["/spec/**"], Some("/spec/**"), Some("/spec/packages/**")),
        (&install, &["/spec/*/**"], Some("/spec/*/**"), Some("/spec/packages/**")),
        (&install, &["/spec/packages/**", "/spec/level"], Some("/spec/level"), None),
        (&both, &["/spec/packages/**", "/spec/level"], None, None),
        (&both, &["/spec/packages/**"], None, Some("/spec/level")),
    ] {
        let claims = claims(claimed);
        let found = unused_claim(host, &claims).map(ToString::to_string);
        assert_eq!(found.as_deref(), unused, "{host:?} {claimed:?}");
        assert_eq!(unclaimed_argument(host, &claims).as_deref(), unclaimed, "{host:?} {claimed:?}");
    }
}
