//! Records: the rules of each shape, the faults, and the scan against the parser.

use proptest::prelude::*;
use serde_json::json;

use super::*;

pub(super) const STRIP: RecordOptions = RecordOptions {
    image_tag: ImageTag::Strip,
};
const INPLACE: RecordOptions = RecordOptions {
    image_tag: ImageTag::Inplace,
};

pub(super) fn record(
    shape: Shape,
    options: RecordOptions,
    value: &Value,
) -> Result<Record, Reject> {
    parse(value.to_string().as_bytes(), shape, &options)
}

pub(super) fn reason(shape: Shape, value: &Value) -> Reason {
    record(shape, STRIP, value).unwrap_err().reason
}

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

fn image(link: &str) -> Part {
    Part::Image { link: link.into() }
}

/// A conversation of one question and one answer with `images`.
fn llava(question: &str, images: Value) -> Value {
    json!({"image": images, "conversations": [
        {"from": "human", "value": question}, {"from": "gpt", "value": " yes \n"}]})
}

#[test]
fn tags_are_cut_out_by_either_rule() {
    let line = llava(
        " \u{1c}<image> \n Compare\u{3000}<image> ",
        json!(["a", "b"]),
    );
    let strip = record(Shape::Llava, STRIP, &line).unwrap();
    assert_eq!(
        strip.messages[0].content,
        [image("a"), text("Compare"), image("b")]
    );
    assert_eq!(strip.messages[1].content, [text(" yes \n")]);
    assert_eq!(strip.links, ["a", "b"]);
    let inplace = record(Shape::Llava, INPLACE, &line).unwrap();
    assert_eq!(
        inplace.messages[0].content,
        [
            text(" \u{1c}"),
            image("a"),
            text(" \n Compare\u{3000}"),
            image("b"),
            text(" ")
        ]
    );
}

#[test]
fn tags_and_images_must_be_as_many() {
    for (question, images) in [
        ("<image><image>", json!("a")),
        ("<image>", json!(["a", "b"])),
        ("none", json!("a")),
        ("<image>", Value::Null),
    ] {
        let line = llava(question, images);
        assert_eq!(
            reason(Shape::Llava, &line),
            Reason::ImageCountMismatch,
            "{line}"
        );
        assert_eq!(
            reason(Shape::Sharegpt, &line),
            Reason::ImageCountMismatch,
            "{line}"
        );
    }
    let in_answer = json!({"image": "a", "conversations": [
        {"from": "human", "value": "q"}, {"from": "gpt", "value": "<image>"}]});
    assert_eq!(reason(Shape::Llava, &in_answer), Reason::ImageCountMismatch);
}

#[test]
fn swift_puts_missing_tags_first_and_refuses_surplus() {
    let line = |question: &str, images: Value| {
        json!({"images": images, "messages": [
            {"role": "system", "content": "s"}, {"role": "user", "content": question},
            {"role": "assistant", "content": "a"}]})
    };
    let made = record(
        Shape::Swift,
        INPLACE,
        &line("x <image>", json!(["a", "b", "c"])),
    )
    .unwrap();
    assert_eq!(
        made.messages[1].content,
        [image("a"), image("b"), text("x "), image("c")]
    );
    assert_eq!(
        reason(Shape::Swift, &line("<image>", json!([]))),
        Reason::ImageCountMismatch
    );
    let empty = record(Shape::Swift, STRIP, &line("", json!(["a"]))).unwrap();
    assert_eq!(empty.messages[1].content, [image("a")]);
}

#[test]
fn every_form_of_an_image_part_is_read() {
    let parts = json!([
        {"type": "image", "image": "a", "text": null}, {"type": "image_url", "image_url": {"url": "b"}},
        {"type": "image_url", "image_url": "c"}, {"type": "image", "url": "d"},
        {"type": "image", "path": "e", "image": null}, {"image": "f"},
        {"type": "text", "text": "t", "image": null, "image_url": null}, {"text": ""}]);
    let line = json!({"id": 7, "messages": [
        {"role": "user", "content": parts}, {"role": "assistant", "content": "x"}]});
    let made = record(Shape::Messages, STRIP, &line).unwrap();
    assert_eq!(made.links, ["a", "b", "c", "d", "e", "f"]);
    assert_eq!(made.messages[0].content[6..], [text("t"), text("")]);
    assert_eq!(made.id.as_deref(), Some("7"));
    for part in [
        json!({"type": "image"}),
        json!({"type": "image", "image": 3}),
        json!({"type": "image", "image": {"path": "x"}}),
        json!({"type": "video", "video": "v"}),
        json!({"type": "text"}),
        json!("bare"),
    ] {
        let line = json!({"messages": [{"role": "user", "content": [part]},
            {"role": "assistant", "content": "x"}]});
        assert_eq!(reason(Shape::Messages, &line), Reason::WrongType, "{line}");
    }
}

#[test]
fn images_that_a_template_would_drop_are_refused() {
    for role in ["assistant", "system"] {
        let line = json!({"messages": [{"role": role, "content": [{"type": "image", "image": "a"}]},
            {"role": "user", "content": "q"}, {"role": "assistant", "content": "x"}]});
        let reject = record(Shape::Messages, STRIP, &line).unwrap_err();
        assert_eq!(reject.reason, Reason::ImageCountMismatch);
        assert_eq!(reject.link.as_deref(), Some("a"));
    }
}

#[test]
fn roles_and_tool_calls_of_every_trainer_are_understood() {
    let calls = json!([{"from": "human", "value": "q"},
        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": 2}}"},
        {"from": "function_call", "value": "[{\"name\": \"g\", \"arguments\": \"raw\"}]"},
        {"from": "observation", "value": "o"}, {"from": "gpt", "value": "a"}]);
    let line = json!({"tools": "[{\"name\": \"f\"}]", "system": "s", "conversations": calls});
    let made = record(Shape::Sharegpt, STRIP, &line).unwrap();
    let roles: Vec<_> = made
        .messages
        .iter()
        .map(|message| message.role.name())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    let names: Vec<_> = made.messages[2]
        .tool_calls
        .iter()
        .map(|call| call.name.as_str())
        .collect();
    assert_eq!(names, ["f", "g"]);
    assert_eq!(
        made.messages[2].tool_calls[0].arguments.to_string(),
        "{\"z\":1,\"a\":2}"
    );
    assert_eq!(made.tools, Some(vec![json!({"name": "f"})]));

    let openai = json!({"messages": [{"role": "user", "content": "q"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": "{}"}}, {"name": "g", "arguments": 1.0}]},
        {"role": "tool", "content": "r"}, {"role": "assistant", "content": "a"}]});
    let made = record(Shape::Messages, STRIP, &openai).unwrap();
    assert_eq!(
        made.messages[1].tool_calls[1],
        ToolCall {
            name: "g".into(),
            arguments: json!(1.0)
        }
    );
    assert!(made.messages[1].content.is_empty());

    let line = json!({"conversations": [{"from": "narrator", "value": "q"}]});
    let reject = record(Shape::Sharegpt, STRIP, &line).unwrap_err();
    assert_eq!(reject.message, "unknown role `narrator`");
}

#[test]
fn records_with_nothing_to_learn_or_other_types_are_refused() {
    for (shape, line, want) in [
        (
            Shape::Messages,
            json!({"messages": []}),
            Reason::NoAssistantTurn,
        ),
        (
            Shape::Messages,
            json!({"messages": [{"role": "user", "content": "q"}]}),
            Reason::NoAssistantTurn,
        ),
        (
            Shape::Messages,
            json!({"question": "q"}),
            Reason::UnknownShape,
        ),
        (Shape::Messages, json!({"messages": "m"}), Reason::WrongType),
        (
            Shape::Messages,
            json!({"messages": [{"role": "user"}]}),
            Reason::WrongType,
        ),
        (
            Shape::Messages,
            json!({"messages": [{"role": 1, "content": "q"}]}),
            Reason::WrongType,
        ),
        (
            Shape::Messages,
            json!({"messages": [], "images": ["a"]}),
            Reason::WrongType,
        ),
        (
            Shape::Llava,
            json!({"conversations": {}}),
            Reason::WrongType,
        ),
        (
            Shape::Llava,
            json!({"conversations": [], "image": 5}),
            Reason::WrongType,
        ),
        (
            Shape::Llava,
            json!({"conversations": [], "image": "a", "images": ["b"]}),
            Reason::WrongType,
        ),
        (
            Shape::Llava,
            json!({"conversations": [], "video": "v"}),
            Reason::WrongType,
        ),
        (
            Shape::Sharegpt,
            json!({"conversations": [], "system": 1}),
            Reason::WrongType,
        ),
        (
            Shape::Sharegpt,
            json!({"conversations": [], "tools": "not json"}),
            Reason::WrongType,
        ),
        (
            Shape::Vqa,
            json!({"question": "q", "answer": 16}),
            Reason::WrongType,
        ),
        (
            Shape::Vqa,
            json!({"question": ["q"], "answer": "a"}),
            Reason::WrongType,
        ),
    ] {
        assert_eq!(reason(shape, &line), want, "{line}");
    }
    // Digits that a 64-bit float would change never reach the model.
    let big =
        r#"{"tools": [{"n": 123456789012345678901234567890}], "question": "q", "answer": "a"}"#;
    assert_eq!(
        parse(big.as_bytes(), Shape::Vqa, &STRIP)
            .unwrap_err()
            .reason,
        Reason::WrongType
    );
}

#[test]
fn an_integer_zero_has_no_sign_as_in_python() {
    let line = r#"{"tools": [{"n": [-0, -0.0, -0e1, 1e-0, -0], "-0 \"": "-0", "m": -0}], "question": "q", "answer": "a"}"#;
    let made = parse(line.as_bytes(), Shape::Vqa, &STRIP).unwrap();
    let tool = &made.tools.unwrap()[0];
    assert_eq!(
        tool.to_string(),
        r#"{"n":[0,-0.0,-0.0,1.0,0],"-0 \"":"-0","m":0}"#
    );
}

#[test]
fn json_faults_name_their_byte() {
    let bad = |line: &[u8]| {
        let reject = parse(line, Shape::Vqa, &STRIP).unwrap_err();
        (reject.reason, reject.column)
    };
    assert_eq!(bad(b"{\"a\": \"\xff\"}"), (Reason::BadUtf8, Some(7)));
    assert_eq!(
        bad(b"\xef\xbb\xbf{\"a\": \xff}"),
        (Reason::BadUtf8, Some(9))
    );
    assert_eq!(bad(b"{\"a\": NaN}"), (Reason::BadJson, Some(6)));
    assert_eq!(bad("{\"\u{e9}\": -Infinity}".as_bytes()).0, Reason::BadJson);
    assert_eq!(bad(b"{\"a\": 1"), (Reason::BadJson, Some(6)));
    assert_eq!(bad(b"{} x"), (Reason::BadJson, Some(3)));
    assert_eq!(bad(b"").0, Reason::BadJson);
    assert_eq!(bad(b"[1]"), (Reason::BadJson, Some(0)));
    let twice = parse(b"{\"q\": {\"a\": 1, \"a\": 2}}", Shape::Vqa, &STRIP).unwrap_err();
    assert_eq!(twice.message, "a key stands twice in one object");
    let deep = [b"{\"a\": ".as_slice(), &[b'['; 100_000]].concat();
    let deep = parse(&deep, Shape::Vqa, &STRIP).unwrap_err();
    assert_eq!(
        (deep.reason, deep.message.as_str()),
        (Reason::BadJson, "the JSON nests too deeply")
    );
}

#[test]
fn byte_order_marks_carriage_returns_and_huge_numbers_are_tolerated() {
    let line = "\u{feff}{\"id\": 12345678901234567890, \"question\": \"q\", \"answer\": \"a\", \"x\": 1e300}\r";
    let made = parse(line.as_bytes(), Shape::Vqa, &STRIP).unwrap();
    assert_eq!(made.id.as_deref(), Some("12345678901234567890"));
    assert!(
        scan_links(line.as_bytes(), Shape::Vqa, &STRIP)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn shapes_are_told_apart() {
    let one = |line: Value| detect([line.to_string().as_bytes()]);
    let turn = json!([{"from": "human", "value": "q"}]);
    assert_eq!(
        one(json!({"conversations": turn, "image": "a"})),
        Some(Shape::Llava)
    );
    assert_eq!(
        one(json!({"conversations": turn, "images": ["a"]})),
        Some(Shape::Sharegpt)
    );
    assert_eq!(
        one(json!({"conversations": turn, "system": ""})),
        Some(Shape::Sharegpt)
    );
    assert_eq!(one(json!({"conversations": turn})), Some(Shape::Llava));
    let turn = json!([{"role": "user", "content": "q"}]);
    assert_eq!(
        one(json!({"messages": turn, "images": ["a"]})),
        Some(Shape::Swift)
    );
    assert_eq!(one(json!({"messages": turn})), Some(Shape::Messages));
    assert_eq!(
        one(json!({"question": "q", "answer": "a"})),
        Some(Shape::Vqa)
    );
    assert_eq!(one(json!({"text": "q"})), None);
    let lines = [
        &b"broken"[..],
        b"{\"messages\": [{}]}",
        b"{\"messages\": [{}], \"images\": [\"a\"]}",
    ];
    assert_eq!(detect(lines), Some(Shape::Swift));
}

/// JSON that is like a record of some shape, but often not quite.
fn nearly_a_record() -> impl Strategy<Value = Value> {
    let link = prop_oneof![
        "[a-z/\\\\\"\u{e9}]{0,4}".prop_map(Value::from),
        Just(Value::Null),
        Just(json!({"url": "u\n"})),
        Just(json!({"url": "u", "detail": "low"})),
        Just(json!(3)),
    ];
    let links = prop_oneof![
        link.clone(),
        proptest::collection::vec(link.clone(), 0..3).prop_map(Value::from)
    ];
    let words = prop_oneof![
        Just(""),
        Just("<image>"),
        Just("q <image>\n"),
        Just("<image><image>"),
        Just("say")
    ];
    let key = prop_oneof![
        Just("image"),
        Just("image_url"),
        Just("url"),
        Just("path"),
        Just("text"),
        Just("type"),
        Just("x")
    ];
    let value = prop_oneof![
        4 => link, 1 => Just(json!("image")), 1 => Just(json!("image_url")), 2 => Just(json!("text"))
    ];
    let part = proptest::collection::vec((key, value), 1..4)
        .prop_map(|entries| {
            entries
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect::<Map<_, _>>()
        })
        .prop_map(Value::from);
    let good = prop_oneof![
        Just(json!({"type": "text", "text": "t"})),
        Just(json!({"type": "image", "image": "a", "url": null})),
        Just(json!({"image_url": {"url": "b"}})),
    ];
    let content = prop_oneof![
        2 => words.clone().prop_map(Value::from),
        2 => proptest::collection::vec(prop_oneof![3 => good, 1 => part], 0..4).prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    let role = prop_oneof![3 => Just("user"), 3 => Just("assistant"), 1 => Just("system"), 1 => Just("tool")];
    let message =
        (role, content).prop_map(|(role, content)| json!({"role": role, "content": content}));
    let from = prop_oneof![3 => Just("human"), 3 => Just("gpt"), 1 => Just("observation")];
    let said = (from, words).prop_map(|(from, value)| json!({"from": from, "value": value}));
    (
        proptest::option::of(links.clone()),
        proptest::option::of(links),
        proptest::collection::vec(message, 0..4),
        proptest::collection::vec(said, 0..4),
    )
        .prop_map(|(image, images, messages, conversations)| {
            let mut line = json!({"question": "q", "answer": "a"});
            if !messages.is_empty() {
                line["messages"] = messages.into();
            }
            if !conversations.is_empty() {
                line["conversations"] = conversations.into();
            }
            for (key, value) in [("image", image), ("images", images)] {
                if let Some(value) = value {
                    line[key] = value;
                }
            }
            line
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_scan_gives_the_links_of_the_parser(value in nearly_a_record()) {
        let line = value.to_string();
        for shape in Shape::ALL {
            for options in [STRIP, INPLACE] {
                let scanned = scan_links(line.as_bytes(), shape, &options);
                if let Ok(record) = parse(line.as_bytes(), shape, &options) {
                    prop_assert_eq!(scanned.unwrap(), record.links);
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_answered(line in proptest::collection::vec(any::<u8>(), 0..64)) {
        for shape in Shape::ALL {
            let _ = parse(&line, shape, &STRIP);
            let _ = scan_links(&line, shape, &STRIP);
        }
        detect([line.as_slice()]);
    }
}
