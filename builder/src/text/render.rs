//! The chat template: compiled once, rendered per record, in a sandbox.
//!
//! Owns what a template can see and call. It has no file, clock or network, a bound on its steps and on
//! its output. Invariant: the text depends on the messages, the tools and the template's source alone.

use std::io;

use minijinja::value::{Serde, Value as TemplateValue};
use minijinja::{AutoEscape, Environment, Error as TemplateError, ErrorKind, context};
use serde::Serialize;
use serde_json::Value;

use super::python;
use crate::error::Error;
use crate::model::ModelFolder;
use crate::record::{Message, Part};
use crate::reject::{Reason, Reject};

/// Steps of one rendering: about 100 a message part in public templates, so this is 100,000 parts.
pub(super) const TEMPLATE_STEPS_MAX: u64 = 10_000_000;
/// Bytes of one rendered text: far beyond any context length, and small enough to hold a few at once.
pub(super) const RENDERED_BYTES_MAX: usize = 64 << 20;

/// The name under which the one template is kept.
const NAME: &str = "chat_template";
/// What tells a template's own refusal from an engine's fault.
const RAISED: &str = "raised: ";

/// A compiled chat template.
pub(super) struct Renderer {
    environment: Environment<'static>,
}

impl Renderer {
    /// Compiles the model's template as Hugging Face's environment would.
    pub(super) fn new(model: &ModelFolder) -> Result<Self, Error> {
        let environment =
            environment(model.template().to_owned()).map_err(|error| Error::Model {
                path: model.template_path().to_path_buf(),
                what: format!(
                    "chat template does not compile at line {}: {}",
                    error.line().unwrap_or_default(),
                    error.kind()
                ),
                hint: "use the template that the model was published with".into(),
            })?;
        Ok(Self { environment })
    }

    /// Renders a conversation.
    pub(super) fn render(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
    ) -> Result<String, Reject> {
        let turns: Vec<Turn<'_>> = messages.iter().map(Turn::from).collect();
        let context = context! {
            messages => TemplateValue::from(Serde(turns)),
            tools => TemplateValue::from(Serde(tools)),
            add_generation_prompt => false,
        };
        let mut out = Bounded(Vec::with_capacity(4096));
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render_captured_to(context, &mut out).map(drop))
            .map_err(|error| refusal(&error))?;
        String::from_utf8(out.0).map_err(|_| {
            Reject::new(
                Reason::TemplateRefused,
                "the chat template's output is not UTF-8",
            )
        })
    }
}

/// An engine set up as Hugging Face's, with `source` compiled.
fn environment(source: String) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    let mut syntax = environment.syntax().to_builder();
    environment.set_syntax(syntax.trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(TEMPLATE_STEPS_MAX));
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

/// A message as a template sees it: text alone is a string, anything else a list of parts.
#[derive(Serialize)]
struct Turn<'a> {
    role: &'a str,
    content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(&'a str),
    Parts(Vec<Piece<'a>>),
}

/// A part. The link itself stays out: templates only ask whether there is an image.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Piece<'a> {
    Text { text: &'a str },
    Image { image: &'static str },
}

#[derive(Serialize)]
struct Call<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a Value,
}

impl<'a> From<&'a Message> for Turn<'a> {
    fn from(message: &'a Message) -> Self {
        let content = match message.content.as_slice() {
            [] => Content::Text(""),
            // An empty part stays a list: templates ask whether there is any content.
            [Part::Text(text)] if !text.is_empty() => Content::Text(text),
            parts => Content::Parts(
                parts
                    .iter()
                    .map(|part| match part {
                        Part::Text(text) => Piece::Text { text },
                        Part::Image { .. } => Piece::Image { image: "image" },
                    })
                    .collect(),
            ),
        };
        let calls = message.tool_calls.iter().map(|call| Call {
            kind: "function",
            function: Function {
                name: &call.name,
                arguments: &call.arguments,
            },
        });
        Self {
            role: message.role.name(),
            content,
            reasoning_content: message.reasoning.as_deref(),
            tool_calls: calls.collect(),
        }
    }
}

/// A writer that fails rather than grow beyond [`RENDERED_BYTES_MAX`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > RENDERED_BYTES_MAX - self.0.len() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn to_json(value: TemplateValue) -> Result<String, TemplateError> {
    let value = serde_json::to_value(&value)
        .map_err(|_| TemplateError::new(ErrorKind::BadSerialization, "not a JSON value"))?;
    Ok(python::dumps(&value))
}

fn raise_exception(message: &str) -> Result<TemplateValue, TemplateError> {
    Err(TemplateError::new(
        ErrorKind::InvalidOperation,
        format!("{RAISED}{message}"),
    ))
}

fn strftime_now(_format: &str) -> Result<TemplateValue, TemplateError> {
    let what = format!("{RAISED}it asks for the time, which a cache must not depend on");
    Err(TemplateError::new(ErrorKind::InvalidOperation, what))
}

fn refusal(error: &TemplateError) -> Reject {
    let what = match (
        error.kind(),
        error.detail().and_then(|text| text.strip_prefix(RAISED)),
    ) {
        (_, Some(message)) => {
            let message: String = message
                .chars()
                .filter(|c| !c.is_control())
                .take(200)
                .collect();
            format!("the chat template refuses the record: {message}")
        }
        (ErrorKind::OutOfFuel, _) => {
            format!("the chat template takes more than {TEMPLATE_STEPS_MAX} steps")
        }
        (ErrorKind::WriteFailure, _) => {
            format!("the chat template gives more than {RENDERED_BYTES_MAX} bytes")
        }
        (kind, _) => format!(
            "the chat template fails at line {}: {kind}",
            error.line().unwrap_or_default()
        ),
    };
    Reject::new(Reason::TemplateRefused, what)
}
