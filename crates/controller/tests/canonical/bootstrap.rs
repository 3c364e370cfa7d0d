//! What Canonical's bootstrap provider reads and writes: releases of Machines, and tokens.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};
use refit_core::annotation::Compat;
use refit_kinds::canonical::{CANONICAL, REFIT};

use super::{
    MACHINE,
    lab::{CHANNEL, CONTROL_PLANE, Lab},
    pass,
};

/// The snap that a Machine with this release joins with, as the bootstrap provider reads it; `None` for a text that it
/// ignores.
fn joins_with(release: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = release.split('=').collect();
    match parts[..] {
        [key @ ("channel" | "revision" | "localPath"), value] => Some((key, value)),
        _ => None,
    }
}

async fn row_55_a_release_has_the_form_that_a_join_reads_and_stays(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for (option, snap) in [
        (CHANNEL, ("channel", "1.34-classic/stable")),
        ("revision=3502", ("revision", "3502")),
        ("localPath=/k8s.snap", ("localPath", "/k8s.snap")),
    ] {
        lab.ask(MACHINE, option).await;
        lab.until(MACHINE, &format!("release={option}")).await;
        let machine = lab.read(MACHINE).await;
        assert_eq!(joins_with(&machine.annotations()[CANONICAL.release]), Some(snap));
    }
    // What Refit's own prefix installs, or refuses to, is another matter.
    for option in ["revision=9", "version=v1.35.0", "version=no"] {
        lab.annotate(MACHINE, REFIT.upgrade_to, Some(option)).await;
        lab.annotate_owner("md", REFIT.upgrade_to, Some("version=v1.35.0")).await;
        pass(600).await;
        let shown = lab.shown(MACHINE).await;
        assert_eq!(shown, ["release=localPath=/k8s.snap", "status=done"]);
        assert_eq!(lab.shown_by("md").await, [""; 0]);
    }
    assert_eq!(lab.read(MACHINE).await.annotations()[REFIT.release], "revision=9");
}

async fn row_55_the_release_of_an_owner_has_the_same_form(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    for owner in ["cp", "md"] {
        lab.annotate_owner(owner, CANONICAL.upgrade_to, Some(CHANNEL)).await;
        lab.until_owner(owner, "status=done").await;
        let shown = lab.shown_by(owner).await;
        let release = shown.iter().find_map(|one| one.strip_prefix("release="));
        assert_eq!(release.and_then(joins_with), Some(("channel", "1.34-classic/stable")));
    }
}

async fn row_56_tokens_are_used_as_the_provider_made_them_and_never_written(compat: Compat) {
    let lab = Lab::in_mode(compat).await;
    let secrets: Api<Secret> = Api::default_namespaced(lab.site.client());
    let before = secrets.get("edge-1-token").await.unwrap();
    let is_token = |token: &[u8]| token.len() == 32 && token.iter().all(u8::is_ascii_hexdigit);
    assert!(before.data.iter().flatten().all(|(_, token)| is_token(&token.0)));
    for machine in [MACHINE, CONTROL_PLANE] {
        lab.ask(machine, CHANNEL).await;
        lab.until(machine, "status=done").await;
        assert!(lab.received(machine).iter().all(|request| request.status == 200));
    }
    let after = secrets.get("edge-1-token").await.unwrap();
    assert_eq!((&after.data, after.resource_version()), (&before.data, before.resource_version()));
    let writes = lab.site.writes();
    assert!(!writes.iter().any(|write| write.contains("edge-1-token")), "{writes:#?}");
}

in_both_modes! {
    row_55_a_release_has_the_form_that_a_join_reads_and_stays,
    row_55_the_release_of_an_owner_has_the_same_form,
    row_56_tokens_are_used_as_the_provider_made_them_and_never_written,
}
