//! Where notifications of managed upgrades are delivered.

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use http::Uri;
use refit_controller::SlackSettings;
use refit_runtime::client::ClientStack;

use crate::endpoint_flags::Endpoint;

/// Where notifications of managed upgrades are delivered.
#[derive(Debug, Args)]
pub(crate) struct NotifyFlags {
    /// Post the notifications of ClusterUpgrades and ClusterUpgradePlans to this URL as CloudEvents
    #[arg(long, value_name = "URL", env = "REFIT_NOTIFY_CLOUDEVENTS_URL")]
    notify_cloudevents_url: Option<Uri>,
    /// Present the bearer token in this file to that server, read again when it changes
    #[arg(
        long,
        value_name = "FILE",
        env = "REFIT_NOTIFY_CLOUDEVENTS_TOKEN_FILE",
        requires = "notify_cloudevents_url"
    )]
    notify_cloudevents_token_file: Option<PathBuf>,
    /// Post them to the webhook of Slack whose URL is in this file, or of a server with its API, such as
    /// Mattermost. The file is read for each message
    #[arg(long, value_name = "FILE", env = "REFIT_NOTIFY_SLACK_URL_FILE")]
    notify_slack_url_file: Option<PathBuf>,
    /// Trust the authorities in this PEM file for both, read again when it changes [default: those of the
    /// system]
    #[arg(long, value_name = "FILE", env = "REFIT_NOTIFY_CA_FILE")]
    notify_ca_file: Option<PathBuf>,
}

impl NotifyFlags {
    /// How both are reached. Flags that contradict each other are an error. What is in the file for Slack is not: the
    /// controller has more to do than to notify.
    pub(crate) fn settings(
        &self,
        stack: &ClientStack,
    ) -> anyhow::Result<(Option<kube::Config>, Option<SlackSettings>)> {
        if let Some(file) = &self.notify_ca_file {
            let is_used =
                self.notify_cloudevents_url.is_some() || self.notify_slack_url_file.is_some();
            ensure!(
                is_used,
                "--notify-ca-file needs --notify-cloudevents-url or --notify-slack-url-file"
            );
            ensure!(file.exists(), "--notify-ca-file {} does not exist", file.display());
        }
        let endpoint = self.notify_cloudevents_url.as_ref().map(|url| Endpoint {
            name: "notify-cloudevents",
            url_flag: "notify-cloudevents-url",
            url: url.clone(),
            token_file: self.notify_cloudevents_token_file.clone(),
            ca_file: self.notify_ca_file.clone(),
        });
        let cloud_events = endpoint.map(|endpoint| endpoint.config(stack)).transpose()?;
        let slack = self.notify_slack_url_file.as_ref().map(|file| SlackSettings {
            url_file: file.clone(),
            ca_file: self.notify_ca_file.clone(),
        });
        if let Some(Err(error)) = slack.as_ref().map(SlackSettings::url) {
            tracing::warn!(error, "Slack gets no notifications for now");
        }
        Ok((cloud_events, slack))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NONE: NotifyFlags = NotifyFlags {
        notify_cloudevents_url: None,
        notify_cloudevents_token_file: None,
        notify_slack_url_file: None,
        notify_ca_file: None,
    };

    #[tokio::test]
    async fn the_url_of_slack_is_read_from_a_file_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("url");
        let flags = || NotifyFlags { notify_slack_url_file: Some(file.clone()), ..NONE };
        let url = || {
            // The controller starts, whatever is in the file.
            let (_, slack) = flags().settings(&ClientStack::production("test")).unwrap();
            slack.unwrap().url()
        };
        assert!(url().unwrap_err().ends_with("the file does not exist"));
        for (content, is_valid) in [
            ("https://hooks.slack.com/services/T0/B0/secret\n", true),
            ("http://hooks.slack.com/services/T0/B0/secret", false),
            ("https://user:secret@hooks.slack.com/", false),
            ("two secret lines\nhttps://hooks.slack.com/", false),
            ("", false),
        ] {
            fs::write(&file, content).unwrap();
            match url() {
                Ok(url) => {
                    assert!(is_valid, "{content}");
                    assert_eq!(url.path(), "/services/T0/B0/secret");
                }
                Err(error) => {
                    assert!(!is_valid, "{content}: {error}");
                    assert!(error.contains("expected one line with a URL"), "{error}");
                    assert!(!error.contains("secret"), "{error}");
                }
            }
        }
    }

    #[tokio::test]
    async fn authorities_without_a_receiver_are_a_mistake() {
        let flags = NotifyFlags { notify_ca_file: Some("/dev/null".into()), ..NONE };
        let error = flags.settings(&ClientStack::production("test")).unwrap_err();
        assert!(error.to_string().contains("--notify-ca-file needs"), "{error}");
    }
}
