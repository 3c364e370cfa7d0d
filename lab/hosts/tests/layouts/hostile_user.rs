//! A user of the host who exchanges files and directories for links, while root writes to them.

use anyhow::ensure;
use lab_hosts::{cluster::Cluster, host::Host, plans, print_line};
use refit_kinds::refit::{
    FailureKind, FileArgs, HostPlanStatus, HostStep, PlanState, PlannedFile, StepType,
};

use crate::WAIT_SECONDS;

/// Paths that lead to files of the user: by links of root, and directly.
const PATHS: [&str; 4] =
    ["/etc/app.conf", "/etc/app.d/rules", "/home/app/app.conf", "/home/app/app.d/rules"];
/// Number of plans while the user exchanges links.
const RACES: usize = 8;
const SETUP: &str = "\
set -e
useradd --create-home app
install -d -o app -g app /home/app/app.d
install -o app -g app /dev/null /home/app/app.conf
mkdir -p /etc/sudoers.d /srv/honest
echo 'admin ALL=(ALL) ALL' > /etc/sudoers.d/admin
chmod 440 /etc/sudoers.d/admin
echo before > /srv/honest/app.conf
ln -s /srv/honest/app.conf /etc/honest.conf
ln -s /home/app/app.conf /etc/app.conf
ln -s /home/app/app.d /etc/app.d
";
/// What the user does once. Of what root has written, a user can only move the directory away.
const LINK: &str = "\
cd /home/app
mv app.conf old.conf
mv app.d $(mktemp --dry-run old.XXXXXX)
ln -s /etc/shadow app.conf
ln -s /etc/sudoers.d app.d
";
/// What the user does again and again.
const EXCHANGE: &str = r#"
chdir "/home/app" or die;
for (my $n = 0; ; $n++) {
    symlink "/etc/shadow", ".link";
    rename ".link", "app.conf";
    rename "app.d", ".d" or rename "app.d", ".d$n";
    symlink "/etc/sudoers.d", "app.d";
    open my $file, ">", ".file";
    close $file;
    rename ".file", "app.conf";
    unlink "app.d";
    rename ".d", "app.d" or mkdir "app.d";
}
"#;
/// Content, owner, mode and times of what the user may not change.
const WITNESS: &str = "\
stat --format='%n %u %g %a %i %Z' /etc/shadow /etc/sudoers.d /etc/sudoers.d/*
stat --format='%n %u %g %a' / /etc /home /srv /srv/honest
sha256sum /etc/shadow /etc/sudoers.d/*
";

pub(crate) async fn exchanges_links(cluster: &Cluster, host: &Host) -> anyhow::Result<()> {
    host.exec(["sh", "-c", SETUP]).await?;
    let status = write(cluster, host, "friendly", &PATHS).await?;
    ensure!(status.state == PlanState::Succeeded, "{status:?}");
    let before = host.exec(["sh", "-c", WITNESS]).await?;
    let untouched = async |when: &str| {
        let now = host.exec(["sh", "-c", WITNESS]).await?;
        ensure!(now == before, "{when}: {before} became {now}");
        anyhow::Ok(())
    };
    links_are_refused(cluster, host, "before").await?;
    untouched("links").await?;

    host.write("srv/exchange.pl", EXCHANGE)?;
    let run = ["systemd-run", "--unit=exchange", "--uid=app", "/usr/bin/perl", "/srv/exchange.pl"];
    host.exec(run).await?;
    let mut refused = 0;
    for (race, path) in (0..RACES).zip(PATHS.iter().cycle()) {
        let status = write(cluster, host, &format!("race-{race}"), &[*path]).await?;
        refused += usize::from(status.state == PlanState::Failed);
        untouched(*path).await?;
    }
    host.exec(["systemctl", "is-active", "exchange.service"]).await?;
    host.exec(["systemctl", "stop", "exchange.service"]).await?;
    print_line(&format!(
        "{}: {refused} of {RACES} plans failed while a user exchanged links",
        host.name
    ));

    links_are_refused(cluster, host, "after").await?;
    untouched("links again").await?;
    let honest = ["/etc/app/app.conf", "/etc/honest.conf"];
    let status = write(cluster, host, "honest", &honest).await?;
    ensure!(status.state == PlanState::Succeeded, "{status:?}");
    let stat = ["stat", "--format=%U:%G %a", "/etc/app/app.conf", "/srv/honest/app.conf"];
    let found = host.exec(stat).await?;
    ensure!(found == "app:app 660\napp:app 660\n", "{found}");
    let found = host.exec(["readlink", "/etc/honest.conf"]).await?;
    ensure!(found == "/srv/honest/app.conf\n", "{found}");
    untouched("honest paths").await
}

/// Checks that no plan writes to a path with a link of the user.
async fn links_are_refused(cluster: &Cluster, host: &Host, when: &str) -> anyhow::Result<()> {
    host.exec(["runuser", "--user", "app", "--", "sh", "-c", LINK]).await?;
    for (at, path) in PATHS.iter().enumerate() {
        let status = write(cluster, host, &format!("{when}-{at}"), &[*path]).await?;
        ensure!(status.state == PlanState::Failed, "{path}: {status:?}");
        let step = plans::step(&status, StepType::Files)?;
        let why = "is a symbolic link that other users than root can change";
        ensure!(
            step.failure == Some(FailureKind::NeedsPerson) && step.message.contains(why),
            "{path}: {step:?}"
        );
    }
    Ok(())
}

/// Has the agent write files that would give the user all rights.
async fn write(
    cluster: &Cluster,
    host: &Host,
    id: &str,
    paths: &[&str],
) -> anyhow::Result<HostPlanStatus> {
    let file = |path: &&str| PlannedFile {
        path: (*path).to_owned(),
        owner: "app:app".to_owned(),
        permissions: "0660".to_owned(),
        content: "app ALL=(ALL) NOPASSWD: ALL\n".to_owned(),
        ..PlannedFile::default()
    };
    let args = FileArgs { files: paths.iter().map(file).collect(), ..FileArgs::default() };
    plans::order_step(cluster, host, id, HostStep::Files(args)).await?;
    plans::ended(cluster, host, id, WAIT_SECONDS).await
}
