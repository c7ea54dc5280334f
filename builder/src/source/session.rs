//! The S3 client: endpoint, credentials, timeouts, and its renewal when credentials expire.
//!
//! Sends no request of its own but those of the credential chain. Invariant: nothing here shows a
//! credential, also not in `Debug`, and no endpoint with a user or a query is ever used.

use std::fmt;
use std::sync::Arc;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::client::error::ImdsError;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials as _;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{SharedHttpClient, StalledStreamProtectionConfig};
use aws_smithy_http_client::Builder as HttpBuilder;
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use aws_types::service_config::ServiceConfigKey;

use super::answer::in_chain;
use super::retry::{Deadlines, Fault};

/// The region where nothing names one: S3-compatible servers take any, AWS redirects with a hint.
const REGION_FALLBACK: &str = "us-east-1";

/// Where the environment may name an endpoint; the SDK prefers the first.
const ENDPOINT_VARIABLES: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];

const HINT_ENDPOINT: &str = "give --s3-endpoint (or AWS_ENDPOINT_URL) as `http://host:port` or \
    `https://host`, without user and query; credentials go into the AWS_* settings";
const HINT_CREDENTIALS: &str =
    "check AWS_PROFILE and the other AWS_* settings, then run the same command again to go on";
const HINT_NO_CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or give the host a role; \
    for public data set AWS_EC2_METADATA_DISABLED=true, then requests go out unsigned";

/// Where credentials come from.
#[derive(Clone, Default)]
pub enum CredentialSource {
    /// The standard chain of the AWS tools: environment, profiles, SSO, web identity, container,
    /// instance. If none of them has any, requests go out unsigned.
    #[default]
    Chain,
    /// Requests go out unsigned.
    Anonymous,
    /// One fixed access key.
    Fixed {
        /// The access key's id.
        access_key: String,
        /// The secret key.
        secret_key: String,
    },
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chain => "Chain",
            Self::Anonymous => "Anonymous",
            Self::Fixed { .. } => "Fixed(***)",
        })
    }
}

/// What a session is made from.
#[derive(Debug, Clone)]
pub(crate) struct SessionOptions {
    pub(crate) endpoint: Option<String>,
    pub(crate) credentials: CredentialSource,
    pub(crate) deadlines: Deadlines,
}

/// What a message calls the endpoint where none is named.
const ENDPOINT_AWS: &str = "S3 of AWS";

/// A client and the generation of its credentials.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) client: Client,
    /// For messages.
    pub(super) endpoint: Arc<str>,
    pub(super) generation: u64,
}

/// The current session, made at its first use and made anew when its credentials have expired.
pub(super) struct Sessions {
    options: SessionOptions,
    current: tokio::sync::Mutex<Option<Session>>,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("credentials", &self.options.credentials)
            .finish_non_exhaustive()
    }
}

impl Sessions {
    pub(super) fn new(options: SessionOptions) -> Self {
        Self {
            options,
            current: tokio::sync::Mutex::default(),
        }
    }

    /// The current session, or a new one if the current one is of generation `stale`.
    pub(super) async fn get(&self, stale: Option<u64>) -> Result<Session, Fault> {
        let mut current = self.current.lock().await;
        let generation = match &*current {
            Some(session) if stale != Some(session.generation) => return Ok(session.clone()),
            Some(session) => session.generation + 1,
            None => 0,
        };
        // All is read again, because a profile's file may hold the new credentials.
        let (client, endpoint) = connect(&self.options, generation == 0).await?;
        let session = Session {
            client,
            endpoint,
            generation,
        };
        Ok(current.insert(session).clone())
    }
}

/// A client, and what messages call its endpoint. `first`: no credentials have been loaded before.
async fn connect(options: &SessionOptions, first: bool) -> Result<(Client, Arc<str>), Fault> {
    let mut config = load(options).await;
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| configured_endpoint(&config));
    let endpoint = endpoint.as_deref();
    if let Some(endpoint) = endpoint {
        check_endpoint(endpoint)?;
    }
    let unsigned = anonymous(options, &config, first).await?;
    if unsigned {
        let mut builder = config.into_builder();
        builder.set_credentials_provider(None);
        config = builder.build();
    }
    let mut s3 = aws_sdk_s3::config::Builder::from(&config)
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .force_path_style(endpoint.is_some());
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        // No TLS stack and no root certificates where nothing is encrypted.
        s3 = s3.http_client(HttpBuilder::new().build_http());
    }
    if config.region().is_none() {
        s3 = s3.region(Region::from_static(REGION_FALLBACK));
    }
    if unsigned {
        s3 = s3.allow_no_auth();
    }
    let named = endpoint.unwrap_or(ENDPOINT_AWS).into();
    Ok((Client::from_conf(s3.build()), named))
}

async fn load(options: &SessionOptions) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(options.deadlines.connect)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(https_client())
        .timeout_config(timeouts);
    let in_environment = |name: &&str| std::env::var_os(name).is_some();
    if options.endpoint.is_some() || ENDPOINT_VARIABLES.iter().any(in_environment) {
        // A server of one's own knows no instance metadata: asking for it only costs time.
        let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
            .or_else(ProfileFileRegionProvider::new())
            .or_else(Region::from_static(REGION_FALLBACK));
        loader = loader.region(region);
    }
    if let Some(endpoint) = &options.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    match &options.credentials {
        CredentialSource::Chain => loader,
        CredentialSource::Anonymous => loader.no_credentials(),
        CredentialSource::Fixed {
            access_key,
            secret_key,
        } => loader.credentials_provider(Credentials::new(
            access_key, secret_key, None, None, "fixed",
        )),
    }
    .load()
    .await
}

/// The endpoint that the SDK will use: S3's own in the environment or the profile, or the general one.
fn configured_endpoint(config: &SdkConfig) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id("S3")
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build()
        .ok()?;
    config
        .service_config()
        .and_then(|service| service.load_config(key))
        .or_else(|| config.endpoint_url().map(str::to_owned))
}

async fn anonymous(
    options: &SessionOptions,
    config: &SdkConfig,
    first: bool,
) -> Result<bool, Fault> {
    let Some(provider) = config.credentials_provider() else {
        return Ok(true);
    };
    if !matches!(options.credentials, CredentialSource::Chain) {
        return Ok(false);
    }
    match provider.provide_credentials().await {
        Ok(_) => Ok(false),
        Err(CredentialsError::CredentialsNotLoaded(_)) => Ok(true),
        Err(CredentialsError::InvalidConfiguration(_)) => Err(Fault::Stop {
            what: "the configuration of the credentials is not valid".into(),
            hint: HINT_CREDENTIALS,
        }),
        // The providers have tried again by themselves. What never was there is missing, what was comes back.
        Err(error) if first && !matches!(error, CredentialsError::ProviderTimedOut(_)) => {
            // The host's role is asked for last, where nothing else is set up.
            let hint = if in_chain::<ImdsError>(&error) {
                HINT_NO_CREDENTIALS
            } else {
                HINT_CREDENTIALS
            };
            Err(Fault::Stop {
                what: "no credentials could be loaded".into(),
                hint,
            })
        }
        Err(_) => Err(Fault::retry("the credentials could not be loaded")),
    }
}

fn https_client() -> SharedHttpClient {
    HttpBuilder::new()
        .tls_provider(tls::Provider::Rustls(CryptoMode::Ring))
        .build_https()
}

/// Refuses endpoints that are no plain `http(s)://host[:port][/path]`, without repeating them.
fn check_endpoint(endpoint: &str) -> Result<(), Fault> {
    let plain = endpoint
        .strip_prefix("http://")
        .or_else(|| endpoint.strip_prefix("https://"))
        .is_some_and(|rest| {
            !rest.is_empty()
                && !rest.starts_with('/')
                && rest.bytes().all(|byte| byte.is_ascii_graphic())
                && !rest.contains(['@', '?', '#', '\\'])
        });
    plain.then_some(()).ok_or_else(|| Fault::Stop {
        what: "the endpoint's URL is not valid".into(),
        hint: HINT_ENDPOINT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_with_secrets_are_refused_unseen() {
        for good in [
            "http://127.0.0.1:9000",
            "https://s3.example.org",
            "http://[::1]:9/x",
        ] {
            assert!(check_endpoint(good).is_ok(), "{good}");
        }
        for bad in [
            "http://user:canary@h:1",
            "http://h:1?token=canary",
            "http://h/#canary",
            "canary",
            "ftp://canary",
            "http://",
            "http:///canary",
            "http://ca nary",
        ] {
            let fault = check_endpoint(bad).unwrap_err();
            assert!(!format!("{fault:?}").contains("canary"));
        }
    }

    #[test]
    fn debug_shows_no_keys() {
        let source = CredentialSource::Fixed {
            access_key: "canary".into(),
            secret_key: "canary".into(),
        };
        assert!(!format!("{source:?}").contains("canary"));
    }
}
