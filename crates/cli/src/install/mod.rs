//! `refit install`: prints or applies the manifests of an installation.

use std::process::ExitCode;

use clap::ValueEnum;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client, api::ListParams};
use refit_install::{
    Choices, Part, apply, kubeadm_config, manifests, manifests::MANAGERS, objects,
};
use refit_predict::{Manager, managers::PROVIDER_LABEL};

use crate::{
    client,
    global::{GlobalArgs, program},
    printer::{Format, Printer},
};

/// Print or apply the manifests of an installation.
///
/// Without --apply, Refit writes nothing to the cluster: it prints the manifests to stdout, for
/// `kubectl apply --server-side -f -` or a repository. With --apply, it applies them in order with
/// server-side apply, as field manager `refit`. Running it again changes nothing; run a newer
/// version to upgrade.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit install --image registry.example/refit:0.1.0 > refit.yaml
  refit install --image registry.example/refit:0.1.0 --apply
  refit install --only crds,rbac
  refit install --image registry.example/refit:0.1.0 --kubeconfigs-in edge,fleet --apply
  refit install --only agent --image registry.example/refit:0.1.0 --apply --kubeconfig edge-1.yaml
  refit install --for kubeadm-config --agent-url https://packages.example/refit-agent \\
    --agent-sha256 \"$(sha256sum refit-agent | cut -c1-64)\"
  refit install --for managers > managers.sh

Refit's hooks require a client certificate from Cluster API's managers. Refit does not edit their \
Deployments: `--for managers` prints the commands that do, and `--apply` prints them if a manager \
lacks its certificate.")]
pub(crate) struct Args {
    /// Apply the manifests instead of printing them.
    #[arg(long)]
    apply: bool,
    /// Select parts [default: all parts of a management cluster, which is every part except agent].
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    only: Vec<PartName>,
    /// Use this image for refit-controller and refit-agent.
    #[arg(long, value_name = "IMAGE", default_value = refit_install::manifests::IMAGE)]
    image: String,
    /// Set the number of controller replicas.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = refit_install::manifests::REPLICAS,
        value_parser = clap::value_parser!(u32).range(1..=9)
    )]
    replicas: u32,
    /// Let the controller read the kubeconfigs of workload clusters in these namespaces only
    /// [default: Secrets of all namespaces, because RBAC has no name patterns].
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = namespace)]
    kubeconfigs_in: Vec<String>,
    /// Print what installs the agent on new hosts at first boot, or gives Cluster API's managers their
    /// client certificate, instead of manifests.
    #[arg(
        long = "for",
        value_enum,
        value_name = "WHAT",
        conflicts_with_all = ["apply", "only", "image", "replicas", "kubeconfigs_in"]
    )]
    target: Option<Target>,
    /// Download the agent program from this URL (with --for).
    #[arg(
        long,
        value_name = "URL",
        requires_all = ["target", "agent_sha256"],
        required_if_eq("target", "kubeadm-config")
    )]
    agent_url: Option<String>,
    /// Require this sha256 of the agent program (with --for).
    #[arg(long, value_name = "HEX", requires = "agent_url")]
    agent_sha256: Option<String>,
}

/// What is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// `files` and `preKubeadmCommands` of a KubeadmConfig, which install the agent.
    KubeadmConfig,
    /// A shell script with the kubectl commands for Cluster API's managers.
    Managers,
}

/// A part of an installation; values of `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PartName {
    /// Namespace refit-system of the management cluster.
    Namespace,
    /// CustomResourceDefinitions.
    Crds,
    /// ServiceAccount, roles, bindings and the admission policy of agents.
    Rbac,
    /// Deployment, Services, PodDisruptionBudget and NetworkPolicy of the controller.
    Controller,
    /// ExtensionConfig: makes Cluster API call Refit.
    Extension,
    /// Namespace, admission policy and DaemonSet of the agents, for a workload cluster.
    Agent,
}

impl From<PartName> for Part {
    fn from(name: PartName) -> Self {
        match name {
            PartName::Namespace => Self::Namespace,
            PartName::Crds => Self::Crds,
            PartName::Rbac => Self::Rbac,
            PartName::Controller => Self::Controller,
            PartName::Extension => Self::Extension,
            PartName::Agent => Self::Agent,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(Format::Text, global);
    if args.target == Some(Target::Managers) {
        printer.result(MANAGERS.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(Target::KubeadmConfig), Some(url), Some(sha256)) =
        (args.target, &args.agent_url, &args.agent_sha256)
    {
        printer.result(kubeadm_config(url, sha256)?.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let parts = parts(args);
    check_image(&args.image)?;
    let choices = Choices {
        image: args.image.clone(),
        replicas: args.replicas,
        kubeconfigs_in: args.kubeconfigs_in.clone(),
    };
    let manifests = manifests(&parts, &choices);
    if !args.apply {
        for manifest in &manifests {
            printer.result(&format!(
                "---\n# deploy/{}\n{}",
                manifest.path,
                manifest.text.trim_end()
            ))?;
        }
        if parts.contains(&Part::Controller) {
            printer.result(&format!(
                "# Then give Cluster API's managers their client certificate: {} install --for \
                 managers prints the commands.",
                program()
            ))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let managers_lack = runtime.block_on(async {
        let cluster = client::connect(global).await?;
        let mut broken = None;
        let outcome = apply(&cluster.client, &objects(&manifests), |applied| {
            if broken.is_none() {
                broken = printer.note(&applied.to_string()).err();
            }
        })
        .await;
        match broken {
            Some(error) => return Err(error.into()),
            None => outcome?,
        }
        anyhow::Ok(parts.contains(&Part::Controller) && managers_lack_flags(&cluster.client).await)
    })?;
    for line in next_steps(&parts) {
        printer.note(&line)?;
    }
    if !args.kubeconfigs_in.is_empty() {
        printer.note(
            "  kubectl delete clusterrolebinding refit-kubeconfigs --ignore-not-found   # of an \
             installation for all namespaces",
        )?;
    }
    if managers_lack {
        printer.note(
            "\nCluster API's managers lack the client certificate for Refit's hooks, and rollouts \
             wait. These commands give it to them:\n",
        )?;
        printer.note(MANAGERS.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a manager of Cluster API presents no client certificate, as far as can be read.
async fn managers_lack_flags(client: &Client) -> bool {
    let api: Api<Deployment> = Api::all(client.clone());
    match api.list(&ListParams::default().labels(PROVIDER_LABEL)).await {
        Ok(found) => {
            let managers: Vec<Manager> = found.iter().filter_map(Manager::of).collect();
            managers.is_empty() || managers.iter().any(|one| !one.missing_flags.is_empty())
        }
        Err(_) => true,
    }
}

fn parts(args: &Args) -> Vec<Part> {
    if args.only.is_empty() {
        return Part::MANAGEMENT.to_vec();
    }
    args.only.iter().map(|&part| part.into()).collect()
}

/// Parses the name of a namespace.
fn namespace(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = |c: Option<char>| c.is_some_and(|c| c != '-');
    let plain = text.chars().all(allowed) && text.len() <= 63;
    if !plain || !ends(text.chars().next()) || !ends(text.chars().last()) {
        return Err("expected the name of a namespace, such as fleet".to_owned());
    }
    Ok(text.to_owned())
}

/// Refuses a text that would not be a valid image in YAML.
fn check_image(image: &str) -> anyhow::Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if image.is_empty() || !image.chars().all(allowed) || !image.starts_with(char::is_alphanumeric)
    {
        anyhow::bail!("invalid --image {image:?}, expected one like registry.example/refit:0.1.0");
    }
    Ok(())
}

fn next_steps(parts: &[Part]) -> Vec<String> {
    let program = program();
    let mut lines = vec![String::new(), "Next:".to_owned()];
    if parts.contains(&Part::Controller) {
        lines.push(
            "  kubectl -n refit-system rollout status deployment/refit-controller".to_owned(),
        );
    }
    if parts.contains(&Part::Extension) {
        lines.push(
            "  kubectl label namespace NAMESPACE refit.dev/in-place=enabled   # opt in, one by one"
                .to_owned(),
        );
        lines.push(
            "  kubectl label namespace NAMESPACE refit.dev/hold-replacements=enabled   # refuse replacements there"
                .to_owned(),
        );
        lines.push(format!(
            "  {program} install --only agent --image IMAGE --apply --kubeconfig WORKLOAD"
        ));
    }
    if parts == [Part::Agent] {
        lines.push("  kubectl -n refit-system rollout status daemonset/refit-agent".to_owned());
        lines.push(
            "  kubectl -n refit-system get hostplans   # one per node, with its report".to_owned(),
        );
    }
    if lines.len() == 2 {
        return Vec::new();
    }
    lines
}

#[cfg(test)]
mod tests {
    use refit_install::InstallError;

    use super::*;

    #[test]
    fn only_a_valid_image_is_accepted() {
        for good in ["refit", "refit:0.1.0", "localhost:5000/a/refit@sha256:ab12"] {
            assert!(check_image(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a\n  privileged: true", "-x", "\"a\""] {
            assert!(check_image(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_applied_part_names_the_next_step() {
        let text = next_steps(&Part::MANAGEMENT).join("\n");
        assert!(text.contains("refit.dev/in-place=enabled"), "{text}");
        assert!(next_steps(&[Part::Agent]).join("\n").contains("hostplans"));
        assert!(next_steps(&[Part::Crds]).is_empty());
        let error = InstallError::NoClusterApi.to_string();
        assert!(error.contains("InPlaceUpdates"), "{error}");
    }
}
