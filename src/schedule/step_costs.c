#include "schedule/step_costs.h"

#include <stdbool.h> /* bool */

enum { MOST_SECONDS = 86400, MOST_TOKENS = 1 << 24, MICROSECONDS = 1000000 };

/* Sums above this are halved, with all others, before they overflow; ranks' sums may still be added up. */
static const int64_t MOST_SUM = INT64_C(1) << 46;
/* Below this part of what it could be, a determinant says that both counts went together in all steps. */
static const double LEAST_PART = 1e-9;

static void halve(struct step_costs *costs) {
    costs->steps = costs->steps / 2 + 1;
    costs->prompt_prompt /= 2;
    costs->prompt_answer /= 2;
    costs->answer_answer /= 2;
    costs->prompt_time /= 2;
    costs->answer_time /= 2;
}

void step_costs_add(struct step_costs *costs, int64_t prompt_tokens, int64_t answer_tokens, double seconds) {
    bool is_usable = prompt_tokens >= 0 && prompt_tokens <= MOST_TOKENS && answer_tokens >= 0 &&
                     answer_tokens <= MOST_TOKENS && seconds >= 0 && seconds <= MOST_SECONDS;
    if (!is_usable || (prompt_tokens == 0 && answer_tokens == 0))
        return;
    int64_t time = (int64_t)(seconds * MICROSECONDS);
    costs->steps++;
    costs->prompt_prompt += prompt_tokens * prompt_tokens;
    costs->prompt_answer += prompt_tokens * answer_tokens;
    costs->answer_answer += answer_tokens * answer_tokens;
    costs->prompt_time += prompt_tokens * time;
    costs->answer_time += answer_tokens * time;
    while (costs->prompt_prompt > MOST_SUM || costs->answer_answer > MOST_SUM ||
           costs->prompt_time > MOST_SUM || costs->answer_time > MOST_SUM)
        halve(costs);
}

/* Both costs are `scale` times the guess: the best scale when they keep their proportion. */
static struct plan_costs scale_guess(const struct step_costs *costs, const struct plan_costs *guess) {
    double a = guess->prompt_token, b = guess->answer_token;
    double tokens = a * a * (double)costs->prompt_prompt + 2 * a * b * (double)costs->prompt_answer +
                    b * b * (double)costs->answer_answer;
    double time = (a * (double)costs->prompt_time + b * (double)costs->answer_time) / MICROSECONDS;
    if (!(tokens > 0 && time > 0))
        return *guess;
    double scale = time / tokens;
    return (struct plan_costs){scale * a, scale * b};
}

struct plan_costs step_costs_solve(const struct step_costs *costs, const struct plan_costs *guess) {
    double pp = (double)costs->prompt_prompt, pa = (double)costs->prompt_answer,
           aa = (double)costs->answer_answer;
    double pt = (double)costs->prompt_time / MICROSECONDS, at = (double)costs->answer_time / MICROSECONDS;
    double determinant = pp * aa - pa * pa;
    if (determinant <= LEAST_PART * pp * aa)
        return scale_guess(costs, guess);
    struct plan_costs found = {(pt * aa - at * pa) / determinant, (at * pp - pt * pa) / determinant};
    if (found.prompt_token < 0)
        found = (struct plan_costs){0, at / aa};
    else if (found.answer_token < 0)
        found = (struct plan_costs){pt / pp, 0};
    return found;
}
