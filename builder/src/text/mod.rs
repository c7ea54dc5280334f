//! From a record and its images' grids to ids and labels.
//!
//! Owns rendering, image pads, tokenising and labels; knows nothing of files or pixels. Invariant: every
//! sample returned holds exactly as many image pads as its images have merged blocks of patches.

mod cut;
mod labels;
mod layout;
mod python;
mod recipe;
mod render;
mod shield;
mod words;

use std::sync::Arc;

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::error::Error;
use crate::model::ModelFolder;
use crate::record::{Message, Part, Record, Role};
use crate::reject::{Reason, Reject};
use labels::Marks;
use layout::Layout;
use render::Renderer;
use words::Words;

pub use labels::IGNORED;
pub use recipe::{LabelRule, Overlong, TextLimits, TextOptions, TextRecipe};

/// Most ids of a sample: their count must fit the index, and the ids of a few samples memory.
const TOKENS_MAX: usize = 1 << 28;

/// A sample's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Token ids, image pads expanded.
    pub input_ids: Vec<i32>,
    /// The id where the loss counts, [`IGNORED`] elsewhere; as long as `input_ids`.
    pub labels: Vec<i32>,
    /// How many of the record's images are left: always the first ones. Fewer than the record has only
    /// if last turns were dropped.
    pub images: usize,
}

/// Prepares records by one recipe. Cheap to share between threads.
pub struct TextPreparer {
    recipe: TextRecipe,
    renderer: Renderer,
    tokenizer: Arc<Tokenizer>,
    /// `None` where the tokenizer is of another kind.
    words: Option<Words>,
    marks: Marks,
    image_pad: i32,
    /// Ids that open an answer, the newline included.
    header: usize,
    /// The id of the word `assistant`, for the finetune rule.
    assistant: Option<i32>,
}

impl std::fmt::Debug for TextPreparer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("TextPreparer")
            .field("recipe", &self.recipe)
            .finish_non_exhaustive()
    }
}

impl TextPreparer {
    /// A preparer for `recipe`, with the template and tokenizer of `model`.
    ///
    /// # Errors
    /// [`Error::Model`] if the recipe was made for other files, or if the template does not compile or
    /// does not mark turns and images as the family does.
    pub fn new(model: &ModelFolder, recipe: TextRecipe) -> Result<Self, Error> {
        for (path, made_for, is) in [
            (
                model.tokenizer_path(),
                &recipe.tokenizer_blake3,
                model.tokenizer_blake3(),
            ),
            (
                model.template_path(),
                &recipe.template_blake3,
                model.template_blake3(),
            ),
        ] {
            if made_for != is {
                return Err(Error::Model {
                    path: path.to_path_buf(),
                    what: format!("hash `{is}`, but the recipe was made for `{made_for}`"),
                    hint: "use the model folder of the earlier build".into(),
                });
            }
        }
        let tokenizer = Arc::clone(model.tokenizer());
        let special = recipe.special;
        let opening = format!("<|im_start|>{}", layout::ANSWER_HEADER);
        let opening = ids(&tokenizer, &opening).unwrap_or_default();
        if opening.first() != Some(&special.im_start.cast_signed()) {
            return Err(unusable(
                model,
                "the tokenizer does not cut `<|im_start|>` out of text",
            ));
        }
        let assistant = match opening.as_slice() {
            [_, word, _newline] => Some(*word),
            _ => None,
        };
        if recipe.label_rule == LabelRule::QwenFinetune && assistant.is_none() {
            return Err(unusable(
                model,
                "the tokenizer has no token `assistant`, which the label rule `qwen_finetune` needs",
            ));
        }
        let preparer = Self {
            renderer: Renderer::new(model)?,
            words: Words::of(&tokenizer),
            tokenizer,
            marks: Marks {
                im_start: special.im_start.cast_signed(),
                im_end: special.im_end.cast_signed(),
            },
            image_pad: special.image_pad.cast_signed(),
            header: opening.len(),
            assistant,
            recipe,
        };
        preparer.probe(model)?;
        Ok(preparer)
    }

    /// The recipe.
    #[must_use]
    pub fn recipe(&self) -> &TextRecipe {
        &self.recipe
    }

    /// Renders a record without tokenising it.
    ///
    /// # Errors
    /// A [`Reject`] with [`Reason::TemplateRefused`].
    pub fn render(&self, record: &Record) -> Result<String, Reject> {
        self.renderer
            .render(&record.messages, record.tools.as_deref())
    }

    /// Prepares a record. `grids` holds (t, h, w) in patches of each image, in the order of its links.
    ///
    /// # Errors
    /// A [`Reject`] with [`Reason::TemplateRefused`], [`Reason::ImageTokensMismatch`],
    /// [`Reason::NoAssistantTurn`] or [`Reason::OverLong`].
    pub fn prepare(&self, record: &Record, grids: &[[i32; 3]]) -> Result<Prepared, Reject> {
        if grids.len() != record.links.len() {
            return Err(Reject::new(
                Reason::ImageTokensMismatch,
                format!("{} grids for {} images", grids.len(), record.links.len()),
            ));
        }
        let whole = self.prepare_turns(&record.messages, record.tools.as_deref(), grids)?;
        let Some(limit) = self.recipe.max_tokens else {
            return Ok(whole);
        };
        if whole.input_ids.len() <= limit as usize {
            return Ok(whole);
        }
        let tokens = whole.input_ids.len();
        if self.recipe.overlong == Overlong::TruncateTurns
            && let Some(fitting) = self.truncate(record, grids, limit as usize)?
        {
            return Ok(fitting);
        }
        let what = format!("{tokens} tokens, more than the allowed `{limit}`");
        Err(Reject::new(Reason::OverLong, what))
    }

    /// The text of ids, control tokens included; what is not UTF-8 is shown as U+FFFD.
    #[must_use]
    pub fn decode(&self, ids: &[i32]) -> String {
        let ids: Vec<u32> = ids
            .iter()
            .filter_map(|id| u32::try_from(*id).ok())
            .collect();
        self.tokenizer.decode(&ids, false).unwrap_or_default()
    }

    /// The longest beginning of the record that ends before a user turn and fits into `limit`.
    fn truncate(
        &self,
        record: &Record,
        grids: &[[i32; 3]],
        limit: usize,
    ) -> Result<Option<Prepared>, Reject> {
        let turns = &record.messages;
        let cuts: Vec<usize> = (1..turns.len())
            .filter(|cut| turns[*cut].role == Role::User && turns[cut - 1].role == Role::Assistant)
            .collect();
        // Longer beginnings have more tokens, so the longest that fits is found by halving.
        let (mut low, mut high, mut best) = (0, cuts.len(), None);
        while low < high {
            let middle = low.midpoint(high);
            let part =
                self.prepare_turns(&turns[..cuts[middle]], record.tools.as_deref(), grids)?;
            if part.input_ids.len() <= limit {
                best = Some(part);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(best)
    }

    /// Prepares `messages`, whose images are the first of `grids`.
    fn prepare_turns(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
        grids: &[[i32; 3]],
    ) -> Result<Prepared, Reject> {
        let rendered = shield::render(&self.renderer, messages, tools)?;
        let layout = layout::read(&rendered)?;
        check(&layout, messages)?;
        let input_ids = self.expand(&rendered.text, &grids[..layout.images])?;
        let labels = match (self.recipe.label_rule, self.assistant) {
            (LabelRule::QwenFinetune, Some(assistant)) => Some(labels::by_finetune_code(
                &input_ids,
                assistant,
                self.marks.im_end,
            )),
            _ => labels::by_structure(&input_ids, &layout, self.marks, self.header),
        };
        let labels = labels.ok_or_else(|| {
            Reject::new(
                Reason::TemplateRefused,
                "the tokenizer cuts control tokens out in another way",
            )
        })?;
        Ok(Prepared {
            input_ids,
            labels,
            images: layout.images,
        })
    }

    /// Tokenises the whole text once and repeats each image pad. Control tokens are cut out of the text
    /// before anything else, so repeating the id is the same as repeating its text, and cheaper.
    fn expand(&self, text: &str, grids: &[[i32; 3]]) -> Result<Vec<i32>, Reject> {
        let short = match &self.words {
            Some(words) => words.ids(&self.tokenizer, text).ok_or_else(no_ids)?,
            None => ids(&self.tokenizer, text)?,
        };
        let mut pads = Vec::with_capacity(grids.len());
        for grid in grids {
            pads.push(pads_of(*grid, self.recipe.merge_size)?);
        }
        let total: usize = pads.iter().sum::<usize>() + short.len() - pads.len().min(short.len());
        if total > TOKENS_MAX {
            let what = format!("{total} tokens, more than the allowed `{TOKENS_MAX}`");
            return Err(Reject::new(Reason::OverLong, what));
        }
        let mut expanded = Vec::with_capacity(total);
        let mut next = pads.iter();
        for id in short {
            if id != self.image_pad {
                expanded.push(id);
            } else if let Some(count) = next.next() {
                expanded.resize(expanded.len() + count, id);
            } else {
                return Err(pads_differ());
            }
        }
        if next.next().is_some() {
            return Err(pads_differ());
        }
        Ok(expanded)
    }

    /// Refuses a template that does not mark turns and images as the families here do.
    fn probe(&self, model: &ModelFolder) -> Result<(), Error> {
        let turn = |role, content| Message {
            role,
            content,
            reasoning: None,
            tool_calls: Vec::new(),
        };
        let text = |text: &str| Part::Text(text.into());
        let image = Part::Image {
            link: String::new(),
        };
        let messages = [
            turn(Role::User, vec![image, text("question")]),
            turn(Role::Assistant, vec![text("answer")]),
        ];
        let merge = self.recipe.merge_size.cast_signed();
        let what = match self.prepare_turns(&messages, None, &[[1, merge, merge]]) {
            Ok(prepared) if prepared.labels.iter().any(|label| *label != IGNORED) => return Ok(()),
            Ok(_) => "it leaves nothing to learn".to_owned(),
            Err(reject) => reject.message,
        };
        Err(Error::Model {
            path: model.template_path().to_path_buf(),
            what: format!(
                "the chat template does not render a question about an image as {} does: {what}",
                self.recipe.family.name()
            ),
            hint: "use the template and the tokenizer that the model was published with".into(),
        })
    }
}

/// Checks that the template rendered every image and every answer.
fn check(layout: &Layout, messages: &[Message]) -> Result<(), Reject> {
    let images = messages
        .iter()
        .flat_map(|message| &message.content)
        .filter(|part| matches!(part, Part::Image { .. }))
        .count();
    if layout.images != images {
        let what = format!(
            "the chat template renders {} of {images} images",
            layout.images
        );
        return Err(Reject::new(Reason::ImageTokensMismatch, what));
    }
    let answers = messages
        .iter()
        .filter(|message| message.role == Role::Assistant)
        .count();
    if layout.opened != answers {
        let what = format!(
            "the chat template renders {} of {answers} assistant turns",
            layout.opened
        );
        return Err(Reject::new(Reason::TemplateRefused, what));
    }
    Ok(())
}

/// Image pads of one image: its patches, merged.
fn pads_of(grid: [i32; 3], merge_size: u32) -> Result<usize, Reject> {
    let block = u64::from(merge_size) * u64::from(merge_size);
    grid.iter()
        .try_fold(1_u64, |patches, side| {
            let side = u64::try_from(*side).ok().filter(|side| *side > 0)?;
            patches.checked_mul(side)
        })
        .filter(|patches| patches % block == 0)
        .and_then(|patches| usize::try_from(patches / block).ok())
        .filter(|pads| *pads <= TOKENS_MAX)
        .ok_or_else(|| {
            let what = format!("a grid of `{grid:?}` patches cannot be merged");
            Reject::new(Reason::ImageTokensMismatch, what)
        })
}

fn pads_differ() -> Reject {
    Reject::new(
        Reason::ImageTokensMismatch,
        "other image tokens in the ids than in the text",
    )
}

/// Token ids of `text`, with no special tokens added.
fn ids(tokenizer: &Tokenizer, text: &str) -> Result<Vec<i32>, Reject> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|_| no_ids())?;
    Ok(encoding
        .get_ids()
        .iter()
        .map(|id| id.cast_signed())
        .collect())
}

fn no_ids() -> Reject {
    let what = "the rendered text cannot be tokenised";
    Reject::new(Reason::TemplateRefused, what)
}

fn unusable(model: &ModelFolder, what: &str) -> Error {
    Error::Model {
        path: model.tokenizer_path().to_path_buf(),
        what: what.into(),
        hint: "use the tokenizer that the model was published with".into(),
    }
}

#[cfg(test)]
mod template_tests;
#[cfg(test)]
mod tests;
