#include "recipe/image.h"

#include <math.h> /* sqrt, floor, round */

enum {
    MOST_ROUNDS = 10,
    WEBP_MOST_SIDE = 16383, /* the format has 14 bits a side */
    DELIMITERS = 2,         /* IMAGE_START and IMAGE_END */
    FEWEST_TOKENS = 4,      /* the delimiters, one embedding and its line end */
    /* Bounds of limits, far above any model's, that keep the sums below in range. */
    MOST_MIN_PIXELS = 1 << 24,
    MOST_TOKENS = 1 << 20,
    MOST_CELL_SIDE = 1 << 10,
};

static int32_t ceil_divide(int32_t number, int32_t divisor) {
    return (number + divisor - 1) / divisor;
}

static int32_t round_up(int32_t number, int32_t multiple) {
    return ceil_divide(number, multiple) * multiple;
}

/* Pixels a side of the patches that become one embedding. */
static int32_t cell_side(const struct image_limits *limits) {
    return limits->patch_size * limits->downsample_ratio;
}

enum result image_limits_check(const struct image_limits *limits) {
    if (limits->patch_size < 1 || limits->downsample_ratio < 1 ||
        (int64_t)limits->patch_size * limits->downsample_ratio > MOST_CELL_SIDE)
        return fail(ERROR_INPUT,
            "vision_config: patch_size %d times downsample_ratio %d: expected 1 to %d pixels",
            limits->patch_size, limits->downsample_ratio, MOST_CELL_SIDE);
    if (limits->min_pixels < 0 || limits->min_pixels > MOST_MIN_PIXELS)
        return fail(ERROR_INPUT, "vision_config: min_pixels %d: expected 0 to %d", limits->min_pixels,
            MOST_MIN_PIXELS);
    if (limits->max_image_tokens < FEWEST_TOKENS || limits->max_image_tokens > MOST_TOKENS)
        return fail(ERROR_INPUT, "vision_config: max_image_tokens %d: expected %d to %d",
            limits->max_image_tokens, FEWEST_TOKENS, MOST_TOKENS);
    return OK;
}

/* Sets the plan's grids and tokens from its width and height. */
static void set_grids(const struct image_limits *limits, struct image_plan *plan) {
    plan->patch_rows = plan->height / limits->patch_size;
    plan->patch_columns = plan->width / limits->patch_size;
    plan->token_rows = ceil_divide(plan->patch_rows, limits->downsample_ratio);
    plan->token_columns = ceil_divide(plan->patch_columns, limits->downsample_ratio);
    /* Lines of one embedding above the budget are planned before they are cut back to it: no overflow. */
    int64_t tokens = (int64_t)plan->token_rows * (plan->token_columns + 1) + DELIMITERS;
    plan->tokens = tokens < INT32_MAX ? (int32_t)tokens : INT32_MAX;
}

/* Shrinks to the budget of tokens: rows * (columns + 1) <= budget with rows = ratio * columns, solved
 * for the columns. All in double and in this order of operations: a different one would round some sizes
 * otherwise. */
static void shrink_to_budget(
    const struct image_limits *limits, int32_t width, int32_t height, struct image_plan *plan) {
    const int32_t cell = cell_side(limits), patch = limits->patch_size;
    const int32_t budget = limits->max_image_tokens - DELIMITERS;
    double ratio = (double)height / width;
    double most_columns = sqrt(budget / ratio + 0.25) - 0.5;
    double most_rows = most_columns * ratio;
    if (most_columns < 1) {
        plan->width = cell;
        plan->height = budget / 2 * cell;
    } else if (most_rows < 1) {
        plan->width = (budget - 1) * cell;
        plan->height = cell;
    } else {
        double scale = fmin(floor(most_columns) * cell / width, floor(most_rows) * cell / height);
        plan->width = (int32_t)(floor(width * scale / patch) * patch);
        plan->height = (int32_t)(floor(height * scale / patch) * patch);
    }
    set_grids(limits, plan);
}

void image_plan_once(
    const struct image_limits *limits, int32_t width, int32_t height, struct image_plan *plan) {
    *plan = (struct image_plan){.shrunk_width = width, .shrunk_height = height};
    double area = (double)width * height;
    if (area > 0 && area < limits->min_pixels) {
        double factor = sqrt(limits->min_pixels / area);
        width = (int32_t)(width * factor);
        height = (int32_t)(height * factor);
    }
    plan->width = round_up(width, limits->patch_size);
    plan->height = round_up(height, limits->patch_size);
    set_grids(limits, plan);
    if (plan->tokens > limits->max_image_tokens)
        shrink_to_budget(limits, width, height, plan);
}

void image_plan_settled(
    const struct image_limits *limits, int32_t width, int32_t height, struct image_plan *plan) {
    image_plan_once(limits, width, height, plan);
    for (int round = 1; round < MOST_ROUNDS && plan->width > 0 && plan->height > 0; round++) {
        int32_t previous_width = plan->width, previous_height = plan->height;
        image_plan_once(limits, previous_width, previous_height, plan);
        if (plan->width == previous_width && plan->height == previous_height)
            break;
    }
    plan->shrunk_width = width;
    plan->shrunk_height = height;
}

/* Brings a longer side under WEBP_MOST_SIDE, the other one with it, and plans again. */
static void refit_long_side(const struct image_limits *limits, struct image_plan *plan) {
    const struct image_plan before = *plan;
    const int32_t patch = limits->patch_size, most = WEBP_MOST_SIDE / patch * patch;
    for (int round = 0; round < MOST_ROUNDS && (plan->width > most || plan->height > most); round++) {
        double scale = (double)WEBP_MOST_SIDE / (plan->width > plan->height ? plan->width : plan->height);
        int32_t width = round_up((int32_t)fmax(plan->width * scale, 1), patch);
        int32_t height = round_up((int32_t)fmax(plan->height * scale, 1), patch);
        image_plan_settled(limits, width < most ? width : most, height < most ? height : most, plan);
    }
    plan->shrunk_width = before.shrunk_width;
    plan->shrunk_height = before.shrunk_height;
}

static void shrink_to_low_detail(int32_t *width, int32_t *height) {
    int32_t longer = *width > *height ? *width : *height;
    if (longer <= IMAGE_LOW_DETAIL_SIDE)
        return;
    double scale = (double)IMAGE_LOW_DETAIL_SIDE / longer;
    *width = (int32_t)fmax(round(*width * scale), 1);
    *height = (int32_t)fmax(round(*height * scale), 1);
}

enum result image_plan(const struct image_limits *limits, int32_t width, int32_t height, bool low_detail,
    struct image_plan *plan) {
    if (width < 1 || height < 1 || width > IMAGE_MOST_SIDE || height > IMAGE_MOST_SIDE)
        return fail(
            ERROR_INPUT, "image of %d x %d pixels: expected 1 to %d a side", width, height, IMAGE_MOST_SIDE);
    int32_t shrunk_width = width, shrunk_height = height;
    if (low_detail)
        shrink_to_low_detail(&shrunk_width, &shrunk_height);
    image_plan_settled(limits, shrunk_width, shrunk_height, plan);
    refit_long_side(limits, plan);
    /* Seen with budgets of a few tokens only: a side of the image rounds down to no patch at all. */
    if (plan->width < limits->patch_size || plan->height < limits->patch_size ||
        plan->tokens > limits->max_image_tokens || plan->width > WEBP_MOST_SIDE ||
        plan->height > WEBP_MOST_SIDE)
        return fail(ERROR_INPUT,
            "image of %d x %d pixels: too narrow for the model's limit of %d tokens an image: crop it", width,
            height, limits->max_image_tokens);
    return OK;
}

enum image_position image_position_kind(const struct image_plan *plan, int32_t index) {
    if (index <= 0)
        return IMAGE_START;
    if (index >= plan->tokens - 1)
        return IMAGE_END;
    return (index - 1) % (plan->token_columns + 1) == plan->token_columns ? IMAGE_NEWLINE : IMAGE_PATCH;
}
