//! Text against an oracle that knows the turns: a plain renderer that notes the bytes of every answer,
//! and the tokenizer's own offsets.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::record::ToolCall;

pub(super) fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny")
}

static MODEL: LazyLock<ModelFolder> = LazyLock::new(|| ModelFolder::open(&tiny()).unwrap());

fn preparer(options: TextOptions) -> TextPreparer {
    TextPreparer::new(&MODEL, TextRecipe::new(&MODEL, options)).unwrap()
}

pub(super) fn say(role: Role, text: &str) -> Message {
    let content = if text.is_empty() {
        vec![]
    } else {
        vec![Part::Text(text.into())]
    };
    Message {
        role,
        content,
        reasoning: None,
        tool_calls: vec![],
    }
}

pub(super) fn record(messages: Vec<Message>) -> Record {
    let parts = messages.iter().flat_map(|message| &message.content);
    let links = parts.filter_map(|part| match part {
        Part::Image { link } => Some(link.clone()),
        Part::Text(_) => None,
    });
    Record {
        id: None,
        links: links.collect(),
        messages,
        tools: None,
    }
}

/// The text with pads expanded, and the bytes that must be learnt.
fn reference(record: &Record, pads: &[usize]) -> (String, Vec<Range<usize>>) {
    let (mut out, mut learnt, mut pads) = (String::new(), Vec::new(), pads.iter());
    let turns = &record.messages;
    for (at, turn) in turns.iter().enumerate() {
        let in_row = |other: Option<&Message>| other.is_some_and(|turn| turn.role == Role::Tool);
        match turn.role {
            Role::System if at > 0 => continue,
            Role::Tool if at > 0 && in_row(turns.get(at - 1)) => {
                out.push_str("\n<tool_response>\n")
            }
            Role::Tool => out.push_str("<|im_start|>user\n<tool_response>\n"),
            role => {
                out.push_str("<|im_start|>");
                out.push_str(role.name());
                out.push('\n');
            }
        }
        let from = out.len();
        for part in &turn.content {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Image { .. } => {
                    out.push_str("<|vision_start|>");
                    out.push_str(&"<|image_pad|>".repeat(*pads.next().unwrap()));
                    out.push_str("<|vision_end|>");
                }
            }
        }
        for (number, call) in turn.tool_calls.iter().enumerate() {
            let line = if number > 0 || !turn.content.is_empty() {
                "\n"
            } else {
                ""
            };
            let arguments = python::dumps(&call.arguments);
            out.push_str(&format!(
                "{line}<tool_call>\n{{\"name\": \"{}\", \"arguments\": {arguments}}}\n</tool_call>",
                call.name
            ));
        }
        if turn.role == Role::Tool {
            out.push_str("\n</tool_response>");
            if in_row(turns.get(at + 1)) {
                continue;
            }
        }
        out.push_str("<|im_end|>\n");
        if turn.role == Role::Assistant {
            learnt.push(from..out.len());
        }
    }
    (out, learnt)
}

/// Labels by offsets: an id counts if all its bytes lie in one answer.
fn oracle(record: &Record, pads: &[usize]) -> Prepared {
    let (text, learnt) = reference(record, pads);
    let encoding = MODEL.tokenizer().encode(text, false).unwrap();
    let input_ids: Vec<i32> = encoding
        .get_ids()
        .iter()
        .map(|id| id.cast_signed())
        .collect();
    let labels = encoding
        .get_offsets()
        .iter()
        .zip(&input_ids)
        .map(|((from, to), id)| {
            let inside = learnt
                .iter()
                .any(|range| range.start <= *from && *to <= range.end);
            if inside { *id } else { IGNORED }
        });
    Prepared {
        labels: labels.collect(),
        input_ids,
        images: pads.len(),
    }
}

/// Text that tries to look like the template's own.
fn hostile() -> impl Strategy<Value = String> {
    const PIECES: [&str; 33] = [
        "<",
        "|",
        "<|",
        "<|im_",
        "start|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "assistant",
        "user",
        "\n",
        "\n\n",
        " ",
        "  \n",
        "a",
        "word ",
        "\u{e9}",
        "e",
        "\u{301}",
        "\u{e000}",
        "\u{1f600}",
        "12",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "<|endoftext|>",
        "\"",
        "\\",
        "'s",
        "\t",
        "\r",
        "\u{338}",
        "{{ x }}",
    ];
    proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..8)
        .prop_map(|pieces| pieces.concat())
}

fn user() -> impl Strategy<Value = Message> {
    let part = prop_oneof![
        3 => hostile().prop_map(Part::Text),
        1 => Just(Part::Image { link: "x".into() }),
    ];
    let role = prop_oneof![3 => Just(Role::User), 1 => Just(Role::Tool)];
    (role, proptest::collection::vec(part, 0..4)).prop_map(|(role, content)| Message {
        role,
        content,
        reasoning: None,
        tool_calls: vec![],
    })
}

fn assistant() -> impl Strategy<Value = Message> {
    let call = (hostile(), hostile(), hostile()).prop_map(|(name, key, value)| ToolCall {
        name,
        arguments: json!({ key: [value, 1.5, null, {"b": true}] }),
    });
    let parts = proptest::collection::vec(hostile().prop_map(Part::Text), 0..3);
    (parts, proptest::collection::vec(call, 0..2)).prop_map(|(content, tool_calls)| Message {
        role: Role::Assistant,
        content,
        reasoning: None,
        tool_calls,
    })
}

fn conversation() -> impl Strategy<Value = Record> {
    let system = proptest::option::of(hostile().prop_map(|text| say(Role::System, &text)));
    let turns = proptest::collection::vec(prop_oneof![user(), assistant()], 0..5);
    (system, turns, assistant()).prop_map(|(system, turns, last)| {
        record(system.into_iter().chain(turns).chain([last]).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(700))]

    #[test]
    fn labels_are_the_answers_whatever_the_text_says(record in conversation()) {
        let preparer = preparer(TextOptions::default());
        let grids = vec![[1, 2, 4]; record.links.len()];
        let pads = vec![2; record.links.len()];
        let prepared = preparer.prepare(&record, &grids).unwrap();
        prop_assert_eq!(&prepared, &oracle(&record, &pads));
    }

    #[test]
    fn no_text_can_take_an_image(record in conversation(), at in any::<proptest::sample::Index>(), token in 0..4_usize) {
        let token = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"][token];
        let preparer = preparer(TextOptions::default());
        let mut record = record;
        let cut = at.index(token.len());
        let turn = at.index(record.messages.len());
        let content = &mut record.messages[turn].content;
        // In two parts, which the template joins.
        content.push(Part::Text(token[..cut].into()));
        content.push(Part::Text(token[cut..].into()));
        let grids = vec![[1, 2, 2]; record.links.len()];
        let reject = preparer.prepare(&record, &grids).unwrap_err();
        prop_assert_eq!(reject.reason, Reason::ImageTokensMismatch);
    }

    #[test]
    fn truncation_leaves_a_beginning_of_whole_turns(record in conversation(), limit in 1..200_u32) {
        let options = TextOptions {
            max_tokens: Some(limit),
            overlong: Overlong::TruncateTurns,
            ..TextOptions::default()
        };
        let grids: Vec<[i32; 3]> = (0..record.links.len()).map(|at| [1, 2, 2 * (at as i32 % 9 + 1)]).collect();
        let whole = preparer(TextOptions::default()).prepare(&record, &grids).unwrap();
        let turns = &record.messages;
        let mut wanted = Some(whole.clone()).filter(|whole| whole.input_ids.len() <= limit as usize);
        for cut in (1..turns.len()).rev() {
            if wanted.is_none() && turns[cut].role == Role::User && turns[cut - 1].role == Role::Assistant {
                let part = self::record(turns[..cut].to_vec());
                let part = preparer(TextOptions::default()).prepare(&part, &grids[..part.links.len()]).unwrap();
                wanted = Some(part).filter(|part| part.input_ids.len() <= limit as usize);
            }
        }
        match preparer(options).prepare(&record, &grids) {
            Ok(prepared) => {
                prop_assert!(whole.input_ids.starts_with(&prepared.input_ids));
                prop_assert_eq!(Some(prepared), wanted);
            }
            Err(reject) => {
                prop_assert_eq!(reject.reason, Reason::OverLong);
                prop_assert_eq!(wanted, None);
            }
        }
    }
}

#[test]
fn a_newline_that_begins_an_answer_is_not_learnt() {
    let record = record(vec![say(Role::User, "q"), say(Role::Assistant, "\nanswer")]);
    let prepared = preparer(TextOptions::default())
        .prepare(&record, &[])
        .unwrap();
    let learnt: Vec<i32> = prepared
        .labels
        .iter()
        .copied()
        .filter(|label| *label != IGNORED)
        .collect();
    let preparer = preparer(TextOptions::default());
    assert_eq!(preparer.decode(&learnt), "answer<|im_end|>\n");
    assert_eq!(
        preparer.decode(&prepared.input_ids),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n\nanswer<|im_end|>\n"
    );
}

#[test]
fn the_finetune_rule_takes_the_word_assistant_in_a_question_for_an_answer() {
    let record = record(vec![
        say(Role::User, "assistant\nquestion"),
        say(Role::Assistant, "a"),
    ]);
    let options = TextOptions {
        label_rule: LabelRule::QwenFinetune,
        ..TextOptions::default()
    };
    let preparer = preparer(options);
    let prepared = preparer.prepare(&record, &[]).unwrap();
    let learnt: Vec<i32> = prepared
        .labels
        .iter()
        .copied()
        .filter(|label| *label != IGNORED)
        .collect();
    assert_eq!(
        preparer.decode(&learnt),
        "question<|im_end|>\na<|im_end|>\n"
    );
}

#[test]
fn records_that_do_not_fit_are_rejected() {
    let options = TextOptions {
        max_tokens: Some(4),
        ..TextOptions::default()
    };
    let record = record(vec![
        say(Role::User, "a question"),
        say(Role::Assistant, "an answer"),
    ]);
    let reject = preparer(options).prepare(&record, &[]).unwrap_err();
    assert_eq!(reject.reason, Reason::OverLong);
    assert!(
        reject.message.ends_with("more than the allowed `4`"),
        "{}",
        reject.message
    );
}

#[test]
fn grids_that_cannot_be_merged_are_rejected() {
    let image = Part::Image { link: "x".into() };
    let user = Message {
        role: Role::User,
        content: vec![image],
        reasoning: None,
        tool_calls: vec![],
    };
    let record = record(vec![user, say(Role::Assistant, "a")]);
    let preparer = preparer(TextOptions::default());
    for grids in [
        &[][..],
        &[[1, 1, 1]],
        &[[0, 2, 2]],
        &[[-1, 2, -2]],
        &[[i32::MAX; 3]],
        &[[1, 2, 2]; 2],
    ] {
        let reject = preparer.prepare(&record, grids).unwrap_err();
        assert_eq!(reject.reason, Reason::ImageTokensMismatch, "{grids:?}");
    }
}

#[test]
fn a_recipe_of_another_model_is_refused() {
    let mut recipe = TextRecipe::new(&MODEL, TextOptions::default());
    let text = serde_json::to_string(&recipe).unwrap();
    assert_eq!(serde_json::from_str::<TextRecipe>(&text).unwrap(), recipe);
    recipe.template_blake3 = "0".repeat(64);
    let error = TextPreparer::new(&MODEL, recipe).unwrap_err();
    assert!(error.to_string().contains("made for"), "{error}");
}

#[test]
fn a_preparer_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<TextPreparer>();
}
