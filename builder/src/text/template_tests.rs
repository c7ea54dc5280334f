//! Templates of other families: what they render, what of it is learnt, and which are refused.

use super::tests::{record, say, tiny};
use super::*;

/// The small model with another template.
fn with_template(source: &str) -> Result<TextPreparer, Error> {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "preprocessor_config.json", "config.json"] {
        std::fs::copy(tiny().join(name), dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("chat_template.jinja"), source).unwrap();
    let model = ModelFolder::open(dir.path()).unwrap();
    TextPreparer::new(&model, TextRecipe::new(&model, TextOptions::default()))
}

/// The markup of Qwen2-VL and Qwen2.5-VL: a system turn by default, lines ended by the template's own.
const QWEN2: &str = "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}<|im_end|>
{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' or 'image' in c %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}";

#[test]
fn templates_of_the_older_families_are_labelled_by_the_same_rule() {
    let preparer = with_template(QWEN2).unwrap();
    let image = Part::Image { link: "x".into() };
    let user = Message {
        role: Role::User,
        content: vec![image, Part::Text("assistant\nq".into())],
        reasoning: None,
        tool_calls: vec![],
    };
    let record = record(vec![
        user,
        say(Role::Assistant, "a"),
        say(Role::User, "r"),
        say(Role::Assistant, "b"),
    ]);
    let prepared = preparer.prepare(&record, &[[1, 2, 2]]).unwrap();
    assert_eq!(
        preparer.decode(&prepared.input_ids),
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|>\
         <|vision_end|>assistant\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n\
         <|im_start|>assistant\nb<|im_end|>\n"
    );
    let learnt: Vec<i32> = prepared
        .labels
        .iter()
        .copied()
        .filter(|label| *label != IGNORED)
        .collect();
    assert_eq!(preparer.decode(&learnt), "a<|im_end|>\nb<|im_end|>\n");
}

/// How the Thinking models of Qwen3-VL show what an assistant thought, in answers after the last question.
const THINKING: &str = "{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {%- set ns.content = '' %}
    {%- if m.content is string %}{%- set ns.content = m.content %}
    {%- else %}{%- for c in m.content %}{%- set ns.content = ns.content + (c.text if 'text' in c else '<|vision_start|><|image_pad|><|vision_end|>') %}{%- endfor %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- set thoughts = '' %}
        {%- if m.reasoning_content is string %}
            {%- set thoughts = m.reasoning_content %}
        {%- elif '</think>' in ns.content %}
            {%- set thoughts = ns.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set ns.content = ns.content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}{{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
    {%- endif %}
    {{- ns.content + '<|im_end|>\\n' }}
{%- endfor %}";

#[test]
fn thoughts_reach_the_template_and_are_learnt_as_the_rest_of_the_turn() {
    let preparer = with_template(THINKING).unwrap();
    let think = |thoughts: &str, text: &str| Message {
        reasoning: Some(thoughts.into()),
        ..say(Role::Assistant, text)
    };
    let record = record(vec![
        say(Role::User, "q"),
        think("before", "a"),
        say(Role::User, "r"),
        // What looks like another turn is text of this one.
        think("now<|im_end|>\n<|im_start|>user\n", "b"),
        say(Role::Assistant, "<think>\nin the text\n</think>\n\nc"),
        think("", "<think>d</think>"),
    ]);
    let prepared = preparer.prepare(&record, &[]).unwrap();
    // Made with apply_chat_template of transformers 4.57.6.
    assert_eq!(
        preparer.decode(&prepared.input_ids),
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n\
         <|im_start|>assistant\n<think>\nnow<|im_end|>\n<|im_start|>user\n</think>\n\nb<|im_end|>\n\
         <|im_start|>assistant\n<think>\nin the text\n</think>\n\nc<|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n<think>d</think><|im_end|>\n"
    );
    let learnt = prepared.labels.iter().copied();
    let learnt: Vec<i32> = learnt.filter(|label| *label != IGNORED).collect();
    assert_eq!(
        preparer.decode(&learnt),
        "a<|im_end|>\n<think>\nnow<|im_end|>\n<|im_start|>user\n</think>\n\nb<|im_end|>\n\
         <think>\nin the text\n</think>\n\nc<|im_end|>\n<think>\n\n</think>\n\n<think>d</think><|im_end|>\n"
    );
}

#[test]
fn templates_of_other_families_and_hostile_ones_are_refused() {
    for (source, want) in [
        (
            "{% for m in messages %}[{{ m.role }}]{% endfor %}",
            "renders 0 of 1 images",
        ),
        (
            "{{ raise_exception('no images') }}",
            "refuses the record: no images",
        ),
        ("{{ strftime_now('%Y') }}", "asks for the time"),
        (
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            "steps",
        ),
        (
            "{% for a in range(9000) %}{{ 'x' * 100000 }}{% endfor %}",
            "gives more than 67108864 bytes",
        ),
        ("{% if %}", "does not compile at line 1"),
        ("{% include 'etc/passwd' %}", "does not compile at line 1"),
        ("{{ messages.nothing.more }}", "undefined value"),
    ] {
        let error = with_template(source).unwrap_err();
        assert!(error.to_string().contains(want), "{source}: {error}");
    }
}
