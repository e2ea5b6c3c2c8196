/* Rules and expressions by their builders: a program of bytes builds any nodes in any order, over and under the
 * limits of the builders; what rules_finish lets pass gives a grammar whose functions agree along a random walk.
 *
 * Input: operations on a stack of expressions and a stack of nodes, a byte and its operands each. */
#include "grammar/rules.h"
#include "grammar_walk.h"

enum { RULES = 4, STACK = 16, REPETITIONS = 3 };

struct machine {
    struct rules *rules;
    uint32_t expressions[STACK], nodes[STACK], numbers[RULES];
    size_t expression_count, node_count, at, bytes;
    const unsigned char *data;
    bool defined[RULES];
    int repetitions; /* within each other they have as many ways to go on as the product of their counts */
};

static unsigned next_byte(struct machine *machine) {
    return machine->at < machine->bytes ? machine->data[machine->at++] : 0;
}

static void push(uint32_t *stack, size_t *count, uint32_t value) {
    if (*count < STACK)
        stack[(*count)++] = value;
    else
        stack[value % STACK] = value;
}

/* The last of the stack, or `none`. */
static uint32_t pop(uint32_t *stack, size_t *count, uint32_t none) {
    return *count ? stack[--*count] : none;
}

static int32_t next_most(struct machine *machine, int32_t least) {
    unsigned byte = next_byte(machine);
    return byte & 1 ? -1 : least + (int32_t)(byte >> 1) % 8 + (least == 0);
}

static void expression_operation(struct machine *machine, unsigned operation) {
    struct expressions *e = rules_expressions(machine->rules);
    uint32_t *stack = machine->expressions, result = EXPRESSION_EMPTY;
    size_t *count = &machine->expression_count;
    uint32_t a = operation >= 4 ? pop(stack, count, EXPRESSION_EMPTY) : EXPRESSION_EMPTY;
    uint32_t b = operation >= 6 ? pop(stack, count, EXPRESSION_EMPTY) : EXPRESSION_EMPTY, both[] = {a, b};
    switch (operation) {
    case 0:
        result = expression_byte(e, (unsigned char)next_byte(machine));
        break;
    case 1: {
        struct code_range range = {next_byte(machine) << 4, 0};
        range.last = range.first + (next_byte(machine) << 2);
        result = expression_code_points(e, &range, 1);
        break;
    }
    case 2:
        result = expression_any_utf8(e);
        break;
    case 3: {
        unsigned modulus = 1 + next_byte(machine) % 3;
        result = expression_multiple(e, modulus, next_byte(machine));
        break;
    }
    case 4:
        result = expression_complement(e, a);
        break;
    case 5: {
        int32_t least = (int32_t)(next_byte(machine) % 8), most = next_most(machine, least);
        result = machine->repetitions++ < REPETITIONS ? expression_repeat(e, a, least, most) : a;
        break;
    }
    case 6:
        result = expression_concatenate(e, b, a);
        break;
    case 7:
        result = expression_either(e, both, 2);
        break;
    default:
        result = expression_both(e, both, 2);
    }
    push(stack, count, result);
}

static void node_operation(struct machine *machine, unsigned operation) {
    struct rules *rules = machine->rules;
    uint32_t *stack = machine->nodes, empty = rules_sequence(rules, NULL, 0), result = empty;
    size_t *count = &machine->node_count;
    uint32_t a = operation >= 3 ? pop(stack, count, empty) : empty;
    uint32_t b = operation >= 5 ? pop(stack, count, empty) : empty, pair[] = {b, a};
    switch (operation) {
    case 0:
        result =
            rules_terminal(rules, pop(machine->expressions, &machine->expression_count, EXPRESSION_EMPTY));
        break;
    case 1:
        result = rules_token(rules, WALK_MARKER);
        break;
    case 2:
        result = rules_call(rules, machine->numbers[next_byte(machine) % RULES]);
        break;
    case 3: { /* what is repeated must not have the empty text: a letter goes before it */
        uint32_t letter = rules_terminal(rules, expression_byte(rules_expressions(rules), 'a'));
        uint32_t behind[] = {letter, a};
        int32_t least = (int32_t)(next_byte(machine) % 6), most = next_most(machine, least);
        result = rules_sequence(rules, behind, 2);
        if (machine->repetitions++ < REPETITIONS)
            result = rules_repeat(rules, result, least, most);
        break;
    }
    case 4: {
        unsigned rule = next_byte(machine) % RULES;
        rules_define(rules, machine->numbers[rule], a);
        machine->defined[rule] = machine->defined[rule] || a != RULES_FAILED;
        break;
    }
    case 5:
        result = rules_sequence(rules, pair, 2);
        break;
    default:
        result = rules_choice(rules, pair, 2);
    }
    push(stack, count, result);
}

/* Rules that were not defined are a letter. */
static void define_rest(struct machine *machine) {
    struct rules *rules = machine->rules;
    for (int i = 0; i < RULES; i++)
        if (!machine->defined[i])
            rules_define(rules, machine->numbers[i],
                rules_terminal(rules, expression_byte(rules_expressions(rules), (unsigned char)('a' + i))));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    struct machine machine = {.data = data, .bytes = bytes};
    struct grammar *grammar = NULL;
    enum { OPERATIONS = 16 };
    if (bytes > 2000)
        return 0;
    walk_expect(rules_create(&machine.rules));
    for (int i = 0; i < RULES; i++)
        machine.numbers[i] = rules_declare(machine.rules, "rule", i & 1);
    while (machine.at < bytes) {
        unsigned operation = next_byte(&machine) % OPERATIONS;
        if (operation < 9)
            expression_operation(&machine, operation);
        else
            node_operation(&machine, operation - 9);
    }
    define_rest(&machine);
    uint32_t root = pop(machine.nodes, &machine.node_count, RULES_FAILED);
    enum result status = rules_finish(machine.rules, root == RULES_FAILED ? 0 : root, &grammar);
    if (status == OK)
        walk_grammar(grammar, walk_seed(data, bytes));
    else
        walk_check(*failure_message(), "a refusal without a reason");
    grammar_free(grammar);
    return 0;
}
