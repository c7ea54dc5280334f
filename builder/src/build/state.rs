//! `building.json`: what an unfinished build is making, so that a resume with anything else is refused.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stoker_formats::{InputEntry, PlanId};

use crate::error::{Error, Result};
use crate::plan::PlanIds;
use crate::publish::Publisher;
use crate::source::printable;

/// Name of the state file in the output folder; it is gone once the manifest is committed.
pub const STATE_NAME: &str = "building.json";

/// Differences named in the refusal.
const DIFFERENCES_MAX: usize = 4;

/// What the unfinished build is making.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BuildState {
    pub(crate) image_plan_id: PlanId,
    pub(crate) text_plan_id: PlanId,
    /// The resolved recipe.
    pub(crate) recipe: Value,
    /// Name, records and hash of each input.
    pub(crate) inputs: Vec<InputState>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputState {
    pub(crate) name: String,
    pub(crate) records: u64,
    pub(crate) hash: String,
}

impl BuildState {
    /// What a committed cache, or a part, was made of.
    pub(crate) fn of(ids: PlanIds, recipe: &Value, inputs: &[InputEntry]) -> Self {
        let input = |input: &InputEntry| InputState {
            name: input.name.clone(),
            records: input.records,
            hash: input.hash.to_string(),
        };
        Self {
            image_plan_id: ids.image,
            text_plan_id: ids.text,
            recipe: recipe.clone(),
            inputs: inputs.iter().map(input).collect(),
        }
    }

    /// The state left in `output`, if a build is unfinished there.
    pub(crate) fn read(output: &Path) -> Result<Option<Self>> {
        let path = output.join(STATE_NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| Error::Usage {
                what: format!("`{}` is damaged: {error}", path.display()),
                hint: "add --restart to begin this build anew; what another one has left goes with --prune"
                    .into(),
            })
    }

    /// The plan ids.
    pub(crate) fn ids(&self) -> PlanIds {
        PlanIds {
            image: self.image_plan_id,
            text: self.text_plan_id,
        }
    }

    /// Makes the state durable.
    pub(crate) fn publish(&self, publisher: &Publisher) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        publisher.replace_bytes(Path::new(""), STATE_NAME, &text)
    }

    /// What differs between this build and `now`, for a person; `words` tell the two apart.
    pub(crate) fn differences(&self, now: &Self, words: [&str; 2]) -> String {
        let mut found = Vec::new();
        compare("recipe", &self.recipe, &now.recipe, words, &mut found);
        for input in &self.inputs {
            match now.inputs.iter().find(|other| other.name == input.name) {
                None => found.push(format!("input `{}` is gone", input.name)),
                Some(other) if other != input => {
                    found.push(format!("content of input `{}`", input.name));
                }
                Some(_) => {}
            }
        }
        for input in &now.inputs {
            if self.inputs.iter().all(|other| other.name != input.name) {
                found.push(format!("input `{}` is new", input.name));
            }
        }
        let more = found.len().saturating_sub(DIFFERENCES_MAX);
        found.truncate(DIFFERENCES_MAX);
        let mut text = found.join(", ");
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
        // What was built elsewhere names its inputs as it likes.
        printable(&text)
    }
}

fn compare(path: &str, old: &Value, new: &Value, words: [&str; 2], found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let keys = old
                .keys()
                .chain(new.keys().filter(|key| !old.contains_key(*key)));
            for key in keys {
                let missing = Value::Null;
                compare(
                    &format!("{path}.{key}"),
                    old.get(key).unwrap_or(&missing),
                    new.get(key).unwrap_or(&missing),
                    words,
                    found,
                );
            }
        }
        _ if old != new => {
            let [before, now] = words;
            found.push(format!("{path}: {old} {before}, {new} {now}"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_name_field_and_both_values() {
        let old = BuildState {
            image_plan_id: PlanId([1; 16]),
            text_plan_id: PlanId([2; 16]),
            recipe: json!({"image": {"profile": "tv_path", "max_pixels": 1}, "seed": 0}),
            inputs: vec![InputState {
                name: "a.jsonl".into(),
                records: 1,
                hash: "x".into(),
            }],
        };
        let mut new = old.clone();
        new.recipe["image"]["profile"] = json!("fast");
        new.inputs[0].hash = "y".into();
        assert_eq!(
            old.differences(&new, ["before", "now"]),
            "recipe.image.profile: \"tv_path\" before, \"fast\" now, content of input `a.jsonl`"
        );
    }
}
